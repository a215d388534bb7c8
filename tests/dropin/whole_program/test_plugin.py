"""JAXRING_INSTALL in scripts that import jax alone: JAX finds `jaxring_plugin` when it starts its backends."""

from __future__ import annotations

import pathlib
import sys

import pytest

from tests.stress.stress_jobs import Job, environment, run_job

WORKER = str(pathlib.Path(__file__).parent / "wp_unchanged.py")
LOADED = "print('jaxring_plugin' in sys.modules, 'jaxring' in sys.modules)"


def run(folder, *command, devices=8, **variables):
    with Job(folder) as job:
        job.start([sys.executable, *command], environment(devices, **variables))
        (result,) = job.wait(100)
    return result


@pytest.mark.parametrize("variables", [{}, {"JAXRING_INSTALL": ""}], ids=["unset", "empty"])
def test_without_the_variable_nothing_is_imported_nor_said(tmp_path, variables):
    script = f"import logging, sys; logging.basicConfig(level=logging.INFO); import jax; jax.devices(); {LOADED}"
    result = run(tmp_path, "-X", "dev", "-W", "error", "-c", script, **variables)
    assert (result.code, result.out.split()) == (0, ["True", "False"]), str(result)
    assert "jaxring" not in result.err


@pytest.mark.parametrize("install", ["lax", "whole"])
def test_one_process(tmp_path, install):
    result = run(tmp_path, "-W", "error", WORKER, JAXRING_INSTALL=install)
    # With `lax` the partitioner's collectives stay with XLA.
    assert (result.code, result.out.split()) == (0, ["right", install]), str(result)
    assert not result.err


def test_backends_that_another_thread_starts(tmp_path):
    """Python takes signal handlers from the main thread only."""
    script = f"import sys, threading, jax; t = threading.Thread(target=jax.devices); t.start(); t.join(); {LOADED}"
    result = run(tmp_path, "-c", script, JAXRING_INSTALL="whole")
    assert (result.code, result.out.split(), result.err) == (0, ["True", "True"], ""), str(result)


@pytest.mark.multiprocess
def test_two_processes(tmp_path):
    """By JAX's own means, without `jaxring run`."""
    outputs = run_job(tmp_path, ["-W", "error", WORKER], 2, 2, JAXRING_INSTALL="whole")
    assert [out.split() for out in outputs] == [["right", "whole"]] * 2


@pytest.mark.parametrize(
    ("break_it", "variables", "says"),
    [
        ("", {"JAXRING_INSTALL": "hole"}, "must be lax or whole"),
        ("", {"JAXRING_INSTALL": "whole", "JAXRING_TIMEOUT": "soon"}, "JAXRING_TIMEOUT"),
        ("sys.modules['jaxring._native'] = None", {"JAXRING_INSTALL": "whole"}, "native module"),
    ],
    ids=["wrong value", "another setting", "import"],
)
def test_a_program_that_asked_for_jaxring_does_not_go_on_without(tmp_path, break_it, variables, says):
    script = f"import sys, jax\n{break_it}\njax.numpy.zeros(3)\nprint('went on')"
    result = run(tmp_path, "-c", script, **variables)
    assert (result.code, result.out) == (1, ""), str(result)
    asked = f"JAXRING_INSTALL={variables['JAXRING_INSTALL']} asks for jaxring, which cannot be imported: "
    lines = [line for line in result.err.splitlines() if asked in line and says in line]
    # It is logged, too, for programs that go on after that.
    assert lines[0].startswith(asked), str(result)
    assert lines[-1].startswith("RuntimeError: Unable to initialize backend 'jaxring': "), str(result)


# Backends as a plugin for GPUs registers them, before `jaxring_plugin` is initialized or after it.
OTHER_BACKEND = """
import sys, jax
from jax.extend.backend import register_backend_factory
from jaxlib import xla_client
import jaxring_plugin
given = jaxring_plugin.initialize
def register():
    register_backend_factory("other", lambda: xla_client.make_cpu_client(num_devices=4), priority=400)
def initialize():
    given()
    register()
if sys.argv[1] == "before":
    register()
else:
    jaxring_plugin.initialize = initialize
sys.modules[sys.argv[2]] = None
print(len(jax.devices(*sys.argv[3:])))
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("platforms", ["other", "other,cpu", ""])
@pytest.mark.sampled(5)
def test_no_backend_of_others_starts_without_jaxring_either(tmp_path, when, platforms):
    variables = {"JAXRING_INSTALL": "whole", "JAX_PLATFORMS": platforms}
    result = run(tmp_path, "-c", OTHER_BACKEND, when, "jaxring._native", "other", **variables)
    assert (result.code, result.out) == (1, ""), str(result)
    assert "Unable to initialize backend 'jaxring': JAXRING_INSTALL=whole asks for jaxring" in result.err


def test_a_backend_of_others_starts_with_jaxring(tmp_path):
    variables = {"JAXRING_INSTALL": "whole", "JAX_PLATFORMS": "other"}
    result = run(tmp_path, "-c", OTHER_BACKEND, "after", "no_such_module", "other", **variables)
    assert (result.code, result.out) == (0, "4\n"), str(result)


def test_ctrl_c_while_it_is_imported_ends_the_program(tmp_path):
    """JAX would swallow it."""
    script = """
import sys, jax
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "jaxring":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
jax.numpy.zeros(3)
print("went on")
"""
    result = run(tmp_path, "-c", script, JAXRING_INSTALL="whole")
    assert (result.code, result.out) == (-2, ""), str(result)
    assert "KeyboardInterrupt" in result.err


def test_what_uninstall_took_back_stays_so(tmp_path):
    """Also where the backends start later, or once more."""
    script = """
import jax, jaxring
from jax.extend.backend import clear_backends
from jaxring import dropin
jaxring.uninstall()
jax.devices()
clear_backends()
jax.devices()
print(bool(dropin._undo_whole), bool(dropin._undo_rules))
"""
    result = run(tmp_path, "-c", script, JAXRING_INSTALL="whole")
    assert (result.code, result.out.split()) == (0, ["False", "False"]), str(result)
