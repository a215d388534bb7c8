"""The operations of one rank in random programs."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from tests.random.rnd_program import Type, is_float
from tests.random.rnd_scope import MOST_ELEMENTS, Scope


class Local(Scope):
    """The part of the generator that makes them."""

    def simple(self) -> None:
        """One of them."""
        made = self.rng.choice(
            [self._unary, self._binary, self._binary, self._cast, self._move, self._where, self.rank]
        )
        made()

    def _unary(self) -> None:
        v = self.pick(lambda t: t.bound is not None or (is_float(t.dtype) and not t.moved))
        if v is None:
            return
        t = self.types[v]
        if t.dtype == "bool":
            options = ["not"]
        elif t.dtype.startswith("complex"):
            options = ["neg", "conj", "scale"] if t.bound is not None else ["neg", "conj"]
        elif not is_float(t.dtype):
            options = ["neg"]
        elif t.dtype.startswith("float8"):
            return
        else:
            options = ["tanh"] if t.bound is None else ["sin", "tanh", "neg", "scale"]
        f = self.rng.choice(options)
        params: dict[str, Any] = {"f": f}
        bound = t.bound
        if f == "scale":
            params["factor"] = self.rng.choice([0.5, -0.75, 1.5])
            bound = t.bound * 1.5 if t.bound is not None else None
        if f in ("sin", "tanh"):
            bound = 1.0
        self.settle(self.add("unary", [v], params, [dataclasses.replace(t, bound=bound, moved=False)])[0])

    def _binary(self) -> None:
        x = self.pick(lambda t: t.bound is not None and not t.dtype.startswith("float8"))
        if x is None:
            return
        t = self.types[x]
        y = self.pick(lambda u: u.dtype == t.dtype and u.shape == t.shape and u.bound is not None)
        assert y is not None
        u = self.types[y]
        moved = t.moved and u.moved
        if t.dtype == "bool":
            options = ["and", "or", "xor"]
        elif is_float(t.dtype):
            options = ["add", "sub", "mul", "mul"]
            if moved and not t.dtype.startswith("complex"):
                options.append("less")
        else:
            options = ["add", "sub", "mul", "and", "or", "xor", "less"]
        f = self.rng.choice(options)
        assert t.bound is not None
        assert u.bound is not None
        bound = t.bound * u.bound if f == "mul" else t.bound + u.bound
        if not is_float(t.dtype) or f == "less":
            bound = 1.0
        made = Type(t.shape, "bool" if f == "less" else t.dtype, self.vary({*t.vary, *u.vary}), bound)
        self.settle(self.add("binary", [x, y], {"f": f}, [made])[0])

    def settle(self, v: int) -> int:
        """A value that is not much larger than one."""
        t = self.types[v]
        if t.bound is None or t.bound <= 4 or not is_float(t.dtype) or t.dtype.startswith("float8"):
            return v
        factor = 2.0 ** -math.ceil(math.log2(t.bound))
        made = dataclasses.replace(t, bound=t.bound * factor, moved=False)
        return self.add("unary", [v], {"f": "scale", "factor": factor}, [made])[0]

    def _cast(self) -> None:
        v = self.pick(lambda t: t.bound is not None)
        if v is None:
            return
        t = self.types[v]
        wanted = self.dtype()
        if wanted in ("bool", t.dtype) or (is_float(t.dtype) and not is_float(wanted)):
            return
        bound = t.bound if is_float(t.dtype) else 7.0 if t.dtype != "bool" else 1.0
        made = dataclasses.replace(t, dtype=wanted, bound=bound if is_float(wanted) else 1.0, moved=False)
        self.settle(self.add("cast", [v], {"dtype": wanted}, [made])[0])

    def _move(self) -> None:
        v = self.pick()
        assert v is not None
        t = self.types[v]
        kind = self.rng.choice(["reshape", "transpose", "take", "concat", "total"])
        if kind == "reshape":
            shape: tuple[int, ...] = (math.prod(t.shape),) if len(t.shape) != 1 else (1, *t.shape)
            self.add("reshape", [v], {"shape": shape}, [dataclasses.replace(t, shape=shape)])
        elif kind == "transpose" and len(t.shape) > 1:
            self.add("transpose", [v], {}, [dataclasses.replace(t, shape=t.shape[::-1])])
        elif kind == "take" and t.shape and t.shape[0]:
            self.resized(v, self.rng.choice([1, 2, 3]))
        elif kind == "concat" and t.shape and 2 * math.prod(t.shape) <= MOST_ELEMENTS:
            made = dataclasses.replace(t, shape=(2 * t.shape[0], *t.shape[1:]))
            self.add("concat", [v, v], {}, [made])
        elif kind == "total" and t.bound is not None and t.dtype != "bool" and not t.dtype.startswith("float8"):
            bound = t.bound * math.prod(t.shape)
            self.settle(self.add("total", [v], {}, [dataclasses.replace(t, shape=(), bound=bound, moved=False)])[0])

    def resized(self, v: int, length: int) -> int:
        """Its first axis with so many entries, some of them again or left out."""
        t = self.types[v]
        at = tuple(self.rng.randrange(t.shape[0]) for _ in range(length))
        return self.add("take", [v], {"at": at}, [dataclasses.replace(t, shape=(length, *t.shape[1:]))])[0]

    def _where(self) -> None:
        c = self.pick(lambda t: t.dtype == "bool")
        if c is None:
            return
        shape = self.types[c].shape
        x = self.pick(lambda t: t.shape == shape)
        assert x is not None
        t = self.types[x]
        y = self.pick(lambda u: u.shape == shape and u.dtype == t.dtype)
        assert y is not None
        u = self.types[y]
        bound = None if t.bound is None or u.bound is None else max(t.bound, u.bound)
        vary = self.vary({*self.types[c].vary, *t.vary, *u.vary})
        self.add("where", [c, x, y], {}, [Type(shape, t.dtype, vary, bound, t.moved and u.moved)])

    def rank(self) -> None:
        """This rank's number over some axes."""
        axes = tuple(self.rng.sample(list(self.sizes), self.rng.randint(1, len(self.sizes))))
        self.add("rank", [], {"axes": axes}, [Type((), "int32", self.vary(axes))])
