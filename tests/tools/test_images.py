"""How `make images` speaks with what builds images, which a script stands for."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests import ROOT

# It says what it is asked for; as `buildah run` it ends as it is told.
BUILDER = """#!/bin/sh
echo "${0##*/} $1" >>"$CALLS"
case $1 in
from) echo container ;;
run) eval "$RUN" ;;
esac
"""
BY_BUILDAH = ["buildah info", "buildah build", "buildah from", "buildah run", "buildah rm"]


@pytest.fixture
def images(tmp_path):
    """images(builder, what `run` does) -> the exit code, and what the builder was asked for."""
    calls = tmp_path / "calls"
    for name, text in (("buildah", BUILDER), ("docker", BUILDER), ("sudo", '#!/bin/sh\nexec "$@"\n')):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def make(builder, run):
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "BUILDER": builder, "RUN": run, "CALLS": str(calls)}
        command = ["bash", str(ROOT / "tools/images.sh"), "cpu"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, start_new_session=True)
        return done.returncode, calls.read_text().splitlines()

    return make


@pytest.mark.parametrize("builder", ["buildah", "sudo buildah"])
def test_buildah_is_known_behind_sudo_too(images, builder):
    assert images(builder, "exit 0") == (0, [*BY_BUILDAH, *BY_BUILDAH[2:]])


def test_docker_removes_containers_by_itself(images):
    assert images("sudo docker", "exit 0") == (0, ["docker info", "docker build", "docker run", "docker run"])


@pytest.mark.parametrize(("run", "code"), [("exit 3", 3), ("kill -INT 0; sleep 60", -signal.SIGINT)])
def test_a_container_is_removed_after_a_failure_and_after_ctrl_c(images, run, code):
    assert images("buildah", run) == (code, BY_BUILDAH)
