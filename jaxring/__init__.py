"""Collectives for JAX that one can see into, steer and trust."""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING

from jaxring import _command, _source_tree

_command.end_at_interrupt()
if not _source_tree.replaced_by_installed():
    from jaxring.settings import settings as _settings

    _settings()  # what is wrong with them is said before the traceback is deep

    if TYPE_CHECKING or not _command.this_process():
        from jaxring._public import *  # noqa: F403
        from jaxring._public import __all__ as __all__

        def __dir__() -> list[str]:
            """The public names: what completion offers."""
            return list(__all__)

        if _settings().install:
            install(whole_program=_settings().install == "whole")  # noqa: F405
    else:
        # Importing JAX takes more than a second of CPU time, and most subcommands do not need it.
        def __getattr__(name: str) -> object:
            if _find_spec(f"jaxring.{name}") is not None:  # `from jaxring import NAME` asks for the attribute first
                return _import_module(f"jaxring.{name}")
            from jaxring import _public

            return getattr(_public, name)
