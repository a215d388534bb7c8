"""`jax.lax`'s parallel operations on jaxring: the same signatures, semantics and rules, for programs that move over.

They serve CPUs; on GPUs `jaxring.install(whole_program=True)` serves `jax.lax`'s own (experimental: it has run on one
GPU only).

Each function is `jax.lax`'s own, of which every primitive is exchanged for a copy that lowers to our custom calls. So
the signatures are those of the JAX at hand, and pytrees, constants, positional axes, groups, typing, differentiation
and batching are JAX's too: a copy's rules are the original's, with the primitives that they bind exchanged likewise.
Names that have nothing to do with collectives are `jax.lax`'s.

Under ``check_vma=True`` JAX casts replicated parameters itself where they meet varying data, and the transpose of its
cast is its own psum. `jaxring.install` catches these as well.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from jax import lax as _jax_lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxring import _compat
from jaxring.dropin.lowerings import CASTS, PLATFORMS, rule, served

if TYPE_CHECKING:
    from collections.abc import Callable

_copies: dict[Any, Any] = {}


def _exchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with _compat.substituting(_copies):
            return function(*args, **kwargs)

    return call


def _future_of_copies(evaluate: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        future, effects = evaluate(*args, **kwargs)
        return _compat.done_by_copies(future, _copies), effects

    return call


def _copy(name: str, original: Any) -> Primitive:
    copy = Primitive(f"jaxring_{name}")
    copy.multiple_results = original.multiple_results
    copy.def_impl(original.impl)  # type: ignore[no-untyped-call]
    evaluate = original.abstract_eval
    if name.endswith("_start"):
        evaluate = _future_of_copies(evaluate)
    copy.def_effectful_abstract_eval(evaluate)  # type: ignore[no-untyped-call]
    for rules in (ad.primitive_jvps, ad.primitive_transposes, batching.fancy_primitive_batchers):
        if original in rules:
            rules[copy] = _exchanged(rules[original])
    for platform in PLATFORMS:
        mlir.register_lowering(copy, rule(name, platform), platform=platform, cacheable=False)
    return copy


def _function(name: str) -> Any:
    original = getattr(_jax_lax, name)
    call = _exchanged(original)
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"`jax.lax.{name}`, lowered to jaxring."
    call.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return call


# Starts are private before jax 0.12, and their futures do not say what ends them.
_STARTS = hasattr(_jax_lax, "psum_scatter_start")


def _make_copies() -> None:
    for name, primitive in _compat.collective_primitives().items():
        if name in CASTS or (name in served() and (_STARTS or not name.endswith(("_start", "_done")))):
            _copies[primitive] = _copy(name, primitive)


_make_copies()

psum = _function("psum")
pmean = _function("pmean")
pmax = _function("pmax")
pmin = _function("pmin")
psum_scatter = _function("psum_scatter")
all_gather = _function("all_gather")
all_to_all = _function("all_to_all")
ragged_all_to_all = _function("ragged_all_to_all")
ppermute = _function("ppermute")
pshuffle = _function("pshuffle")
pswapaxes = _function("pswapaxes")
pbroadcast = _function("pbroadcast")
pcast = _function("pcast")
if _STARTS:
    psum_scatter_start = _function("psum_scatter_start")
axis_index = _jax_lax.axis_index
axis_size = _jax_lax.axis_size


def __getattr__(name: str) -> Any:
    return getattr(_jax_lax, name)
