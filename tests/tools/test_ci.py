"""The script of CI, with commands in place of the real ones that do nothing: `make` waits, so the script does. And what
the workflows install before they run it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from tests import ROOT

# It says which group of processes is in it.
MAKE = """case $* in *.environment) exit;; esac
read -r _ _ _ _ group _ </proc/$$/stat
echo "$group" >>made
while [ ! -e end ]; do sleep 0.02; done
"""


class Checkout:
    """A folder with the script."""

    def __init__(self, folder):
        self.folder, self.started = folder, []
        script = (ROOT / ".ci" / "run").read_text()
        texts = dict.fromkeys(re.findall(r"^need (\S+)", script, re.MULTILINE), "")
        texts |= {f"python{version}": "" for version in re.findall(r'"(3\.\d+) ', script)}
        texts.pop("flock", None)  # the real one
        texts |= {"make": MAKE, "clang++": "echo /\n", "../.venv/bin/python": "echo 3.11 0.10.2\n"}
        for name, text in texts.items():
            file = folder / "commands" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"#!/bin/bash\n{text}")
            file.chmod(0o755)
        (folder / ".ci").mkdir()
        shutil.copy(ROOT / ".ci" / "run", folder / ".ci")

    def start(self):
        env = {**os.environ, "PATH": f"{self.folder / 'commands'}:{os.environ['PATH']}"}
        with (self.folder / f"out{len(self.started)}").open("w") as out:
            command = [self.folder / ".ci" / "run"]
            self.started.append(
                subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
            )
        return self.started[-1]

    def groups(self):
        """The groups of processes in which a `make` has been started."""
        made = self.folder / "made"
        return set(map(int, made.read_text().split())) if made.exists() else set()

    def end(self):
        (self.folder / "end").touch()
        for group in {*self.groups(), *(process.pid for process in self.started)}:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for process in self.started:
            process.wait()


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_a_second_run_does_not_work_beside_what_a_killed_one_has_left(tmp_path):
    checkout = Checkout(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.callback(checkout.end)
        first = checkout.start()
        deadline = time.monotonic() + 60
        while len(checkout.groups()) < 2:  # `make test`, and the first lane beside
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(first.pid, signal.SIGKILL)  # the lanes beside are a group of their own
        assert checkout.start().wait(60) == 1
        said = (tmp_path / "out1").read_text()
        assert "what one that was killed has left behind, is at work in this checkout" in said


@pytest.mark.parametrize(("workflow", "command"), [("ci.yml", "bash .ci/run"), ("weekly.yml", "make test-ptx-all")])
def test_the_kernels_are_compiled_by_the_nvcc_of_the_tables(workflow, command):
    """Without an nvcc the script leaves them out, and what another one makes is not compared with the tables."""
    (version,) = re.findall(r"^\| nvcc (\S+), sm_90 \|", (ROOT / "docs" / "cuda.md").read_text(), re.MULTILINE)
    release = version.rpartition(".")[0]
    assert f" cuda_{release}.r{release}/" in (ROOT / "docs" / "cuda-resources.txt").read_text().partition("\n")[0]
    before, _, _ = (ROOT / ".github" / "workflows" / workflow).read_text().partition(f"- run: {command}")
    _, _, job = before.rpartition("runs-on:")
    installed = dict(re.findall(r"(nvidia-\S+)==(\S+)", job))
    assert {installed.get(part) for part in ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt")} == {version}
    for part in ("nvidia-cuda-cccl", "nvidia-cuda-runtime"):
        assert installed[part].rpartition(".")[0] == release
    assert re.search(r'echo "CUDA_HOME=.*/cu13" >>"\$GITHUB_ENV"', job)
