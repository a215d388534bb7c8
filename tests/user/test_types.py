"""A user's program that calls every public function runs, and mypy and pyright find nothing wrong with it."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import pathlib
import subprocess
import sys
from typing import Any, get_args

import pytest

import jaxring
import jaxring.typing as jaxring_typing
from jaxring.compress.formats import FORMATS
from jaxring.plan import dtypes
from jaxring.plan.protocols import PROTOCOLS
from tests import ROOT

# Those with public functions.
MODULES = ("data_parallel", "epilogues", "lax", "moe", "optax", "profiler", "recovery", "sharded")
PROGRAM = pathlib.Path(__file__).with_name("typed_program.py")
# What is wrong with a line, by the line: as mypy and as pyright say it.
WRONG = {
    'jaxring.all_reduce(1.0, "x", op=3)': (
        'Argument "op" to "all_reduce" has incompatible type "Literal[3]"',
        'parameter "op" of type "Op"',
    ),
    'jaxring.reduce(1.0, "x", "avg")': (
        'Argument 3 to "reduce" has incompatible type "Literal[\'avg\']"',
        'parameter "op" of type "Op"',
    ),
    'jaxring.all_gather(1.0, "x", protocol="ll64")': (
        'Argument "protocol" to "all_gather" has incompatible type "Literal[\'ll64\']"',
        'parameter "protocol" of type "Protocol | None"',
    ),
    'jaxring.all_reduce(1.0, "x", compress="int2")': (
        'Argument "compress" to "all_reduce" has incompatible type "Literal[\'int2\']"',
        'parameter "compress" of type "CompressedFormat | None"',
    ),
    'jaxring.data_parallel.value_and_grad(abs, "x", op="max")': (
        'Argument "op" to "value_and_grad" has incompatible type "Literal[\'max\']"',
        'parameter "op" of type',
    ),
    'jaxring.all_to_all(1.0, "x", 0)': (
        'Missing positional argument "concat_axis"',
        'Argument missing for parameter "concat_axis"',
    ),
    'jaxring.permute(1.0, "x", [0])': ('List item 0 has incompatible type "int"', 'to parameter "perm" of type'),
    'jaxring.all_reduce_start(1.0, "x").done().size': (
        '"float" has no attribute "size"',
        'Cannot access attribute "size" for class "float"',
    ),
    'jaxring.sharded.all_reduce(1.0, MESH, "x", timeut=1.0)': (
        'Unexpected keyword argument "timeut"',
        'No parameter named "timeut"',
    ),
    "jaxring.Communicator().all_reduce([1.0])": ('incompatible type "list[float]"', "list[float]"),
    "jaxring.shrink().gone": (
        '"Membership" has no attribute "gone"',
        'Cannot access attribute "gone" for class "Membership"',
    ),
}


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
    said = mypy(tmp_path, text + "\n" + "\n".join(WRONG) + "\n").splitlines()
    first = len(text.splitlines()) + 2
    for number, (expected, _) in enumerate(WRONG.values(), first):
        assert any(line.startswith(f"program.py:{number}: ") and expected in line for line in said), (expected, said)
    assert f"Found {len(WRONG)} errors" in said[-1]


def pyright(folder: pathlib.Path, text: str) -> list[dict[str, Any]]:
    """The errors that pyright's rules, in standard mode, find in a program with this text, outside of the project."""
    (folder / "program.py").write_text(text, encoding="utf-8")
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(ROOT)], "include": ["program.py"]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout, done.stderr  # where it cannot start
    found = json.loads(done.stdout)["generalDiagnostics"]
    return [each for each in found if each["severity"] == "error"]


@pytest.mark.slow
def test_pyright_finds_nothing_wrong_but_what_is(tmp_path: pathlib.Path) -> None:
    text = PROGRAM.read_text(encoding="utf-8")
    assert pyright(tmp_path, text) == []
    said = pyright(tmp_path, text + "\n" + "\n".join(WRONG) + "\n")
    first = len(text.splitlines()) + 1
    for number, (_, expected) in enumerate(WRONG.values(), first):
        at = [each["message"] for each in said if each["range"]["start"]["line"] == number]
        assert any(expected in message for message in at), (expected, said)
    assert len({each["range"]["start"]["line"] for each in said}) == len(WRONG)


def test_the_types_have_the_names_that_are_served() -> None:
    assert set(get_args(jaxring_typing.Op)) == set(dtypes.REDUCE_OPS)
    assert set(get_args(jaxring_typing.Protocol)) == set(PROTOCOLS)
    assert set(get_args(jaxring_typing.CompressedFormat)) == set(FORMATS)


def test_completion_offers_the_public_names() -> None:
    assert dir(jaxring) == sorted(jaxring.__all__)


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
    for module in MODULES:
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
    made = {"optax.CompressedMeanState", "optax.DilocoState"}
    only_in_newer_jax = {"jaxring.lax.psum_scatter_start"}
    assert public - named - only_in_newer_jax == {f"jaxring.{name}" for name in made}
