"""A user's program that calls every public function runs, and mypy --strict finds nothing wrong with it."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import pathlib
import subprocess
import sys

import pytest

import jaxring
from tests import ROOT

PROGRAM = pathlib.Path(__file__).with_name("typed_program.py")


def mypy(folder: pathlib.Path, text: str) -> str:
    """What mypy says of a program with this text, outside of the project and without its settings."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    # The package is that of the checkout, of which a user's mypy sees the types alone.
    options = ("--strict", "--config-file=", "--follow-imports=silent", f"--cache-dir={folder / 'cache'}")
    command = [sys.executable, "-m", "mypy", *options, "program.py"]
    env = os.environ | {"MYPYPATH": str(ROOT), "PYTHONPATH": ""}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_mypy_finds_nothing_wrong_but_what_is(tmp_path: pathlib.Path) -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    assert mypy(tmp_path, text).startswith("Success: no issues found")
    wrong = {
        'jaxring.all_reduce(1.0, "x", op=3)': 'Argument "op" to "all_reduce" has incompatible type "int"',
        'jaxring.all_to_all(1.0, "x", 0)': 'Missing positional argument "concat_axis"',
        'jaxring.permute(1.0, "x", [0])': 'List item 0 has incompatible type "int"',
        'jaxring.all_reduce_start(1.0, "x").done().size': '"float" has no attribute "size"',
        'jaxring.sharded.all_reduce(1.0, MESH, "x", timeut=1.0)': 'Unexpected keyword argument "timeut"',
        "jaxring.Communicator().all_reduce([1.0])": 'incompatible type "list[float]"',
        "jaxring.shrink().gone": '"Membership" has no attribute "gone"',
    }
    said = mypy(tmp_path, text + "\n" + "\n".join(wrong) + "\n").splitlines()
    first = len(text.splitlines()) + 2
    for number, expected in enumerate(wrong.values(), first):
        assert any(line.startswith(f"program.py:{number}: ") and expected in line for line in said), (expected, said)
    assert f"Found {len(wrong)} errors" in said[-1]


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_the_program_runs(tmp_path: pathlib.Path) -> None:
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}
    command = [sys.executable, "-W", "ignore::jaxring.ReplicatedOperandWarning", str(PROGRAM), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-6000:]


def test_it_names_every_public_function() -> None:
    tree = ast.parse(PROGRAM.read_text(encoding="utf-8"))
    named = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    public = {f"jaxring.{name}" for name in jaxring.__all__ if name != "__version__"}
    for module in ("data_parallel", "epilogues", "lax", "moe", "optax", "profiler", "recovery", "sharded"):
        found = importlib.import_module(f"jaxring.{module}")
        names = getattr(found, "__all__", None) or [
            name
            for name, value in vars(found).items()
            if inspect.isfunction(value) and value.__module__ == found.__name__ and not name.startswith("_")
        ]
        assert names, module
        public |= {
            f"{found.__name__}.{name}"
            for name in names
            if callable(value := getattr(found, name)) and value is not getattr(jaxring, name, None)
        }
    # By functions that say their types.
    made = {"epilogues.Epilogue", "recovery.Membership", "optax.CompressedMeanState", "optax.DilocoState"}
    only_in_newer_jax = {"jaxring.lax.psum_scatter_start"}
    assert public - named - only_in_newer_jax == {f"jaxring.{name}" for name in made}
