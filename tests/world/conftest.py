"""Fixtures for tests of the world: settings without the environment, worlds that are closed again."""

from __future__ import annotations

import os
import pathlib
import subprocess
import threading

import pytest

HERE = pathlib.Path(__file__).parent
from jaxring.settings import load  # noqa: E402
from jaxring.topology.interfaces import Address  # noqa: E402
from jaxring.world import World, failover, job_world, resumption  # noqa: E402
from tests import starting  # noqa: E402
from tests.world.moves.two_paths import HOME, OTHER  # noqa: E402
from tests.world.world_fakes import DirStore, FakeNative  # noqa: E402


@pytest.fixture
def make_world(tmp_path):
    """make_world(process, count=2, timeout_s=60, **variables) -> (World, FakeNative), all closed afterwards.

    `rdma`: the RDMA ports of its host.
    """
    made = []
    others = set(threading.enumerate())

    def make(process, count=2, timeout_s=60.0, coordinator="", rdma=(), **variables):
        native = FakeNative(rdma)
        settings = load({"JAXRING_" + name: value for name, value in variables.items()})
        try:
            world = World(
                DirStore(tmp_path), process, count, native, timeout_s, coordinator=coordinator, settings=settings
            )
        except BaseException:
            native.close()
            raise
        made.append((world, native))
        return world, native

    yield make
    for world, native in made:
        world.close()
        native.close()
    # What they have yet to log would be taken for the next test's.
    for thread in set(threading.enumerate()) - others:
        if thread.name == "jaxring-failover":
            thread.join(60)


@pytest.fixture
def environment():
    """The environment for a Python process, without this one's settings."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("JAXRING_", "JAX_", "XLA_"))}
    return env | {"JAX_PLATFORMS": "cpu"}


@pytest.fixture
def run_together():
    """run_together([(argv, env), ...]) -> outputs; all are killed when one fails or takes too long."""

    def run(commands, timeout_s=120):
        children = [
            starting.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for argv, env in commands
        ]
        try:
            results = [child.communicate(timeout=timeout_s) for child in children]
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.communicate()
        for child, (out, err) in zip(children, results, strict=True):
            assert child.returncode == 0, out + err
        return [out for out, _ in results]

    return run


@pytest.fixture
def two_interfaces(monkeypatch):
    """Two addresses on two interfaces for each World, between which connections move when a test says so."""
    monkeypatch.setattr(job_world.interfaces, "choose", lambda *_: [Address("a", HOME), Address("b", OTHER)])
    # Nothing goes back unless a test asks for it, and nothing is late on a busy machine.
    monkeypatch.setattr(failover, "_RETURN_S", 1000.0)
    monkeypatch.setattr(failover, "_EACH_S", 60.0)
    monkeypatch.setattr(resumption, "_MOVE_S", 60.0)
