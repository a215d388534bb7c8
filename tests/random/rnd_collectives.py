"""The collectives of random programs: which one, over which axes, with which operands and options."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tests.random.rnd_local import Local
from tests.random.rnd_program import Type, is_float
from tests.random.rnd_scope import MOST_ELEMENTS

_NAMES = {
    "all_reduce": 8, "all_gather": 4, "reduce_scatter": 4, "all_to_all": 4, "permute": 4, "broadcast": 2, "reduce": 2,
    "gather": 2, "scatter": 2, "message": 1, "ragged_all_to_all": 1, "barrier": 1,
}  # fmt: skip
_REDUCING = ("all_reduce", "reduce", "reduce_scatter")


class Collectives(Local):
    """The part of the generator that makes them."""

    def collective(self) -> None:
        """One of them, if there is a value that fits."""
        names = dict(_NAMES)
        # With types a received value varies over all manual axes, more than jax.lax.ppermute's result does.
        if self.context.derivatives or self.check_vma:
            names.pop("message", None)
        name = self.rng.choices(list(names), list(names.values()))[0]
        params = self._over(name)
        if name == "ragged_all_to_all":
            return self._ragged(params)
        v = self.pick(lambda t: t.bound is not None) if name in _REDUCING else self.pick()
        if v is None:
            return None
        splits = name in ("reduce_scatter", "all_to_all", "scatter")
        if splits or name in ("all_gather", "gather"):
            v = self._shaped(v, params, splits, name)
            if v is None:
                return None
        args = [v]
        if not splits and name not in ("all_gather", "gather") and self.rng.random() < 0.2:
            suits = (lambda t: t.bound is not None) if name in _REDUCING else (lambda t: True)
            args.append(self.pick(suits))
        if name in _REDUCING:
            op = self._op([self.types[a].dtype for a in args])
            if op is None:
                return None
            params["op"] = op
            if op in ("min", "max") and self.context.derivatives:
                params["stopped"] = True
        if name in ("broadcast", "reduce", "gather", "scatter"):
            params["root"] = self.rng.randrange(params["ranks"])
        if name in ("permute", "message"):
            params["perm"] = self._permutation(params["ranks"])
            if len(params["axes"]) > 1:
                params["places"] = [list(self.sizes).index(axis) for axis in params["axes"]]
                params["shape"] = [self.sizes[axis] for axis in params["axes"]]
        if name == "message":
            params["tag"] = self.rng.randrange(3)
        if name == "barrier":
            args = [a for a in args if self._plain_number(self.types[a])]
            if not args:
                return None
        if name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "permute"):
            if self.rng.random() < 0.1:
                params["started"] = True
            elif name in ("all_reduce", "all_gather", "reduce_scatter") and self.rng.random() < 0.15:
                params["asked"] = self.rng.choice(["ring", "direct"])
        outs = self.add("collective", args, params, [self._result(name, params, self.types[a]) for a in args])
        for out in outs:
            self.settle(out)
        return None

    @staticmethod
    def _plain_number(t: Type) -> bool:
        return t.dtype != "bool" and t.bound is not None and not t.dtype.startswith("float8")

    def _over(self, name: str) -> dict[str, Any]:
        mesh = list(self.sizes)
        vmaps = [axis for axis, _ in self.context.vmaps]
        sizes = {**self.sizes, **dict(self.context.vmaps)}
        if vmaps and self.rng.random() < 0.4 and name not in ("ragged_all_to_all", "message", "barrier"):
            axes = [self.rng.choice(vmaps)]
            if name in ("all_reduce", "all_gather", "broadcast") and self.rng.random() < 0.5:
                axes.insert(self.rng.randrange(2), self.rng.choice(mesh))
        else:
            axes = self.rng.sample(mesh, self.rng.randint(1, len(mesh)))
        params: dict[str, Any] = {"name": name, "axes": tuple(axes), "ranks": math.prod(sizes[a] for a in axes)}
        if len(axes) == 1 and self.rng.random() < 0.1:
            params["tuple"] = True
        size = params["ranks"]
        may = len(axes) == 1 and axes[0] in mesh and not self.check_vma and size > 1
        if may and name not in ("permute", "message", "ragged_all_to_all", "barrier") and self.rng.random() < 0.3:
            count = self.rng.choice([n for n in range(1, size + 1) if size % n == 0])
            ranks = list(range(size))
            self.rng.shuffle(ranks)
            params["groups"] = [ranks[i::count] for i in range(count)]
            params["ranks"] = size // count
            params.pop("tuple", None)
        return params

    def _shaped(self, v: int, params: dict[str, Any], splits: bool, name: str) -> int | None:
        t, ranks = self.types[v], params["ranks"]
        params["tiled"] = self.rng.random() < 0.5
        if not splits:
            if math.prod(t.shape) * ranks > MOST_ELEMENTS:
                return None
            if not t.shape:
                params["tiled"] = False
            params["axis"] = self.rng.randrange(len(t.shape) + (not params["tiled"]))
            return v
        if not t.shape or not t.shape[0]:
            return None
        length = ranks * (self.rng.choice([1, 1, 2]) if params["tiled"] else 1)
        if length * math.prod(t.shape[1:]) > MOST_ELEMENTS:
            return None
        fits = [i for i, n in enumerate(t.shape) if (n % ranks == 0 if params["tiled"] else n == ranks)]
        at = self.rng.choice(fits) if fits else 0
        if not fits:
            v = self.resized(v, length)
        if name == "all_to_all":
            params |= {"split": at, "concat": self.rng.randrange(len(t.shape))}
        else:
            params["axis"] = at
        return v

    def _op(self, dtypes: list[str]) -> str | None:
        ops: set[str] = {"sum", "prod", "min", "max", "mean", "and", "or", "xor"}
        for dtype in dtypes:
            if dtype == "bool":
                ops &= {"sum", "min", "max", "and", "or", "xor"}
            elif dtype.startswith("complex"):
                ops &= {"sum", "prod", "mean"}
            elif dtype.startswith("float8"):
                ops &= {"sum", "min", "max"}
            elif is_float(dtype):
                ops &= {"sum", "prod", "min", "max", "mean"}
            else:
                ops -= {"mean"}
        if not ops:
            return None
        return "sum" if "sum" in ops and self.rng.random() < 0.4 else self.rng.choice(sorted(ops))

    def _permutation(self, ranks: int) -> list[tuple[int, int]]:
        targets = list(range(ranks))
        self.rng.shuffle(targets)
        pairs = list(zip(range(ranks), targets, strict=True))
        return [pair for pair in pairs if self.rng.random() < 0.85] or pairs

    def _result(self, name: str, params: dict[str, Any], t: Type) -> Type:
        mesh = [axis for axis in params["axes"] if axis in self.sizes]
        ranks, shape, bound = params["ranks"], list(t.shape), t.bound
        dtype = "int32" if t.dtype == "bool" and params.get("op") == "sum" else t.dtype
        if name in ("all_reduce", "broadcast") and "groups" not in params:
            vary = self.vary(set(t.vary) - set(mesh))
        else:
            vary = t.vary if name == "barrier" else self.vary({*t.vary, *mesh})
        if is_float(t.dtype) and bound is not None:
            bound = (
                bound * ranks if params.get("op") == "sum" else bound**ranks if params.get("op") == "prod" else bound
            )
        if name in ("all_gather", "gather"):
            if params["tiled"]:
                shape[params["axis"]] *= ranks
            else:
                shape.insert(params["axis"], ranks)
        elif name in ("reduce_scatter", "scatter"):
            if params["tiled"]:
                shape[params["axis"]] //= ranks
            else:
                del shape[params["axis"]]
        elif name == "all_to_all":
            split, concat = params["split"], params["concat"]
            if params["tiled"]:
                shape[split] //= ranks
                shape[concat] *= ranks
            else:
                del shape[split]
                shape.insert(concat, ranks)
        moved = t.moved and "op" not in params and name != "barrier"
        return dataclasses.replace(t, shape=tuple(shape), dtype=dtype, vary=vary, bound=bound, moved=moved)

    def _ragged(self, params: dict[str, Any]) -> None:
        x = self.pick(lambda t: bool(t.shape) and bool(t.shape[0]))
        if x is None:
            return
        t = self.types[x]
        y = self.pick(lambda u: bool(u.shape) and u.dtype == t.dtype and u.shape[1:] == t.shape[1:])
        n = params["ranks"]
        rows, room = t.shape[0], self.types[y].shape[0]
        sizes = [[0] * n for _ in range(n)]
        starts = [[self.rng.randrange(rows + 1) for _ in range(n)] for _ in range(n)]
        lands = [[0] * n for _ in range(n)]
        for target in range(n):
            at = self.rng.randrange(room + 1)
            for source in self.rng.sample(range(n), n):
                size = min(self.rng.randint(0, 2), rows - starts[source][target], room - at)
                sizes[source][target], lands[source][target] = size, at
                at += size
        params |= {
            "sizes": sizes,
            "starts": starts,
            "lands": lands,
            "by_hand": bool(self.context.batched or self.context.derivatives),
        }
        u = self.types[y]
        bound = None if t.bound is None or u.bound is None else max(t.bound, u.bound)
        vary = self.vary({*t.vary, *u.vary, *params["axes"]})
        self.add(
            "collective", [x, y], params, [dataclasses.replace(u, vary=vary, bound=bound, moved=t.moved and u.moved)]
        )
