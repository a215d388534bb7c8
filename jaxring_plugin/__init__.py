"""What JAX loads in every program before it starts its backends: has `JAXRING_INSTALL` hold for unchanged scripts.

JAX imports the modules that packages name under the entry points `jax_plugins`, and calls `initialize()` of each. This
one is a package beside `jaxring`, because the import of a module of `jaxring` would import all of it: a program that
does not ask for jaxring shall pay microseconds for it.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import NoReturn

_VARIABLE = "JAXRING_INSTALL"
# The name of a backend that fails, for JAX's error.
_REFUSED = "jaxring"


def initialize() -> None:
    """Imports jaxring if the variable is set, which installs what it says. Raises nothing, since JAX would go on.

    JAX only logs what a plugin raises. A program that asked for jaxring must not run without it, so no backend of JAX's
    starts instead.
    """
    if not os.environ.get(_VARIABLE):
        return
    try:
        importlib.import_module("jaxring")
    except BaseException as error:
        _refuse(error)


def _refuse(error: BaseException) -> None:
    import jax
    from jax.extend.backend import register_backend_factory

    text = f"{_VARIABLE}={os.environ[_VARIABLE]} asks for jaxring, which cannot be imported: {error}"
    # For programs that go on after a failed start of JAX's backends, or choose other ones then.
    logging.getLogger("jaxring.install").error("%s", text)

    def fail() -> NoReturn:
        if not isinstance(error, Exception):  # Ctrl-C, or an exit
            raise error
        raise RuntimeError(text) from error

    # JAX starts the backends that `jax_platforms` names when all plugins are initialized, and fails where one of them
    # does: neither CPUs nor GPUs can be used, whatever JAX_PLATFORMS says and in whichever order plugins come.
    register_backend_factory(_REFUSED, fail, fail_quietly=False)
    jax.config.update("jax_platforms", _REFUSED)  # type: ignore[no-untyped-call]
