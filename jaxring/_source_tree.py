"""What `import jaxring` means where Python finds the source tree first: in a checkout, after `pip install .`.

Python puts the current folder, or the script's, before the installed packages. The sources alone cannot run: the native
module is beside the installed package. Mixing the two would run one version's Python on another version's engine, so
the installed package takes the source tree's place as a whole. An editable install finds its native module from here,
and is not concerned.
"""

from __future__ import annotations

import filecmp
import importlib.util
import pathlib
import sys
import warnings
from importlib.machinery import ModuleSpec, PathFinder

_HERE = pathlib.Path(__file__).resolve().parent
_NATIVE = "jaxring._native"


def replaced_by_installed() -> bool:
    """Whether the installed package has been imported in place of this source tree; False where nothing is amiss.

    Called while the package is imported. Raises ImportError where there is no native module here and none installed.
    """
    if importlib.util.find_spec(_NATIVE) is not None:
        return False
    installed = _installed()
    if installed is None:
        raise ImportError(
            f"{_HERE} holds jaxring's sources, and its native module is not built. To use the sources, build it with "
            "`pip install -e .`; to use an installed jaxring, leave the folder that holds them.",
            name=_NATIVE,
            path=str(_HERE),
        )
    _import(installed)
    return True


def _installed() -> ModuleSpec | None:
    """The package that Python would find if this source tree were not there, with a native module of its own."""
    path = [entry for entry in sys.path if (pathlib.Path(entry or ".") / _HERE.name).resolve() != _HERE]
    found = PathFinder.find_spec("jaxring", path)
    # The folder of an editable install's native module is not a package: it has no loader.
    if found is None or found.loader is None or not found.submodule_search_locations:
        return None
    whole = PathFinder.find_spec(_NATIVE, found.submodule_search_locations)
    return None if whole is None else found


def _import(installed: ModuleSpec) -> None:
    """Import it under our name. Python takes what is in sys.modules when this import is over."""
    for name in [name for name in sys.modules if name == "jaxring" or name.startswith("jaxring.")]:
        del sys.modules[name]
    module = importlib.util.module_from_spec(installed)
    sys.modules["jaxring"] = module
    assert installed.loader is not None
    installed.loader.exec_module(module)
    folder = pathlib.Path(module.__path__[0])
    if differing := _differing(folder):
        others = f" and {len(differing) - 1} other file(s)" if len(differing) > 1 else ""
        warnings.warn(
            f"The sources in {_HERE} differ from the installed jaxring in {folder} ({differing[0]}{others}), and the "
            "installed package is used. To use the sources: `pip install -e .`.",
            stacklevel=4,  # at the import
        )


def _differing(installed: pathlib.Path) -> list[str]:
    """Python files of this source tree that are not the same in the installed package."""
    names = sorted(str(path.relative_to(_HERE)) for path in _HERE.rglob("*.py"))
    same = filecmp.cmpfiles(_HERE, installed, names, shallow=False)[0]
    return sorted(set(names) - set(same))
