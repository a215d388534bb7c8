"""Python that stands in the checkout, where `pip install .` was run: `import jaxring` finds the source tree first."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
import subprocess
import sysconfig
import venv

import pytest

from tests import ROOT

WHERE = "import jaxring, jaxring.plan.cost as cost; print(jaxring.__file__, cost.__file__, jaxring.__version__)"


def environment(folder):
    """An environment of Python with all that ours has, but for jaxring: (its python, its folder of packages)."""
    venv.create(folder, symlinks=True)
    packages = pathlib.Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    # A path that stands in a .pth file does not have its own .pth files read, such as that of an editable install.
    origins = [importlib.util.find_spec(name).origin for name in ("jax", "jaxlib", "numpy", "rich")]
    folders = sorted({str(pathlib.Path(origin).parents[1]) for origin in origins})
    (packages / "dependencies.pth").write_text("\n".join(folders) + "\n")
    return folder / "bin" / "python", packages


def install(packages):
    """What an installation of the wheel leaves: the package, with the native module, and what JAX loads beside it."""
    shutil.copytree(ROOT / "jaxring_plugin", packages / "jaxring_plugin", ignore=shutil.ignore_patterns("__pycache__"))
    copy = packages / "jaxring"
    shutil.copytree(ROOT / "jaxring", copy, ignore=shutil.ignore_patterns("__pycache__"))
    native = pathlib.Path(importlib.util.find_spec("jaxring._native").origin)
    if not (copy / native.name).exists():
        shutil.copy(native, copy)
    return copy


def checkout(folder):
    """The sources of the package and of the studies, as a checkout has them."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in ("benchmarks", "jaxring"):
        shutil.copytree(ROOT / name, folder / "checkout" / name, ignore=ignored)
    return folder / "checkout" / "jaxring"


def python(executable, cwd, *arguments):
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "JAXRING_"))}
    done = subprocess.run(
        [executable, *arguments],
        cwd=cwd,
        env=inherited | {"JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """(python, the installed package, the checkout's package): the sources are the same."""
    folder = tmp_path_factory.mktemp("installed")
    executable, packages = environment(folder / "venv")
    return executable, install(packages), checkout(folder)


SCRIPT = """
import jax
import numpy as np
import jaxring
from jax.sharding import Mesh, PartitionSpec as P
jax.config.update("jax_num_cpu_devices", 2)
mesh = Mesh(np.array(jax.devices()), ("x",))
total = jax.jit(jax.shard_map(lambda v: jaxring.all_reduce(v, "x"), mesh=mesh, in_specs=P("x"), out_specs=P()))
print(float(total(np.arange(2.0))[0]), jaxring.__file__)
"""


def test_a_script_in_the_root_runs_the_installed_package(installed):
    executable, package, source = installed
    script = source.parent / "script.py"
    script.write_text(SCRIPT)
    assert python(executable, source.parent, script.name) == (0, f"1.0 {package}/__init__.py\n", "")


@pytest.mark.slow
def test_studies_modules_and_workers_run_the_installed_package(installed):
    executable, package, source = installed
    code, out, err = python(executable, source.parent, "-m", "benchmarks.pytrees", "--help")
    assert (code, err) == (0, ""), err
    assert "usage:" in out
    (source.parent / "where.py").write_text(WHERE)
    # The command itself comes from the source tree's folder; and its workers do, unless they are told not to.
    run = ["-m", "jaxring.cli", "run", "-n", "2", "--no-prefix", "--no-init", "where.py"]
    code, out, err = python(executable, source.parent, *run)
    assert (code, err) == (0, ""), err
    line = f"{package}/__init__.py {package}/plan/cost.py"
    assert [each.rpartition(" ")[0] for each in out.splitlines()] == [line] * 2


def test_sources_that_differ_from_what_is_installed_are_named_and_not_mixed(tmp_path):
    """Another version's: a name that its package exports, and a module that it has, are no part of the other."""
    executable, packages = environment(tmp_path / "venv")
    package, source = install(packages), checkout(tmp_path)
    (source / "errors.py").write_text("raise RuntimeError('another version')\n")
    (source / "new.py").write_text("value = 1\n")
    code, out, err = python(executable, source.parent, "-c", WHERE)
    assert code == 0, err
    assert out.startswith(f"{package}/__init__.py {package}/plan/cost.py ")
    assert f"{source} differ from the installed jaxring in {package} (errors.py and 1 other file(s))" in err
    assert err.count("differ from") == 1
    assert "pip install -e ." in err
    code, _, err = python(executable, source.parent, "-c", "import jaxring.new")
    assert code == 1
    assert "No module named 'jaxring.new'" in err


@pytest.mark.parametrize("half", ["nothing", "an installation without its native module", "an editable one's remains"])
def test_where_nothing_is_installed_it_says_what_to_do(tmp_path, half):
    executable, packages = environment(tmp_path / "venv")
    source = checkout(tmp_path)
    if half != "nothing":
        package = install(packages)
        (package / ("__init__.py" if "editable" in half else pathlib.Path(native_name(package)))).unlink()
    code, _, err = python(executable, source.parent, "-c", "import jaxring")
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith(f"ImportError: {source} holds jaxring's sources, and its native module is not built.")
    assert "pip install -e ." in last
    assert "leave the folder that holds them" in last


def native_name(package):
    return next(path.name for path in package.iterdir() if path.name.startswith("_native.") and path.suffix == ".so")
