"""Whether a build has the CUDA engine, and for which GPUs: what CMake decides beside a fake nvcc and nvidia-smi."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jaxring.plan.gpu import experimental
from tests import ROOT

if TYPE_CHECKING:
    import pathlib

SCRIPT = ROOT / "cmake/JaxringCudaChoice.cmake"
NVCC = """#!/bin/sh
case "$1" in
--version) echo "Cuda compilation tools, release 13.0, V13.0.88" ;;
--list-gpu-code) printf 'sm_75\\nsm_80\\nsm_86\\nsm_90\\nsm_100\\nsm_120\\n' ;;
esac
"""
NO_GPU = "echo 'NVIDIA-SMI has failed'; exit 9"


class Machine:
    """Where nvcc is the fake one, and nvidia-smi runs ``driver``, a line of sh."""

    def __init__(self, folder: pathlib.Path, driver: str) -> None:
        self.folder = folder
        for name, text in (("nvcc", NVCC), ("nvidia-smi", f"#!/bin/sh\n{driver}\n")):
            path = folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)

    def says(self, *definitions: str, script: pathlib.Path = SCRIPT) -> str:
        """What CMake says, as one line; its errors, too."""
        path = os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))  # noqa: PTH120 - not resolved
        cmake = shutil.which("cmake", path=path)
        assert cmake is not None
        environment = os.environ | {"CUDA_HOME": str(self.folder), "PATH": f"{self.folder / 'bin'}{os.pathsep}{path}"}
        command = [cmake, *(f"-DJAXRING_CUDA{each}" for each in definitions), "-P", str(script)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode == 0) == (not done.stderr), done.stderr
        return " ".join((done.stdout + done.stderr).split())


def gpus(*capabilities: str) -> str:
    """A line of sh that says what nvidia-smi says where there are GPUs."""
    return f"[ $1 = --query-gpu=compute_cap ] && printf '%s\\n' {' '.join(capabilities)}"


@pytest.fixture
def no_gpu(tmp_path: pathlib.Path) -> Machine:
    return Machine(tmp_path, NO_GPU)


@pytest.mark.parametrize(
    ("capabilities", "built_for"),
    [
        (["9.0"], "sm_90"),
        (["12.0", "8.6", "12.0"], "sm_86, sm_120"),
        (["7.5", "8.0"], "sm_80"),
        (["12.1"], "sm_120"),  # which this nvcc does not know, and which runs sm_120's PTX
    ],
)
def test_what_the_gpus_of_the_machine_need_is_built(tmp_path, capabilities, built_for):
    machine = Machine(tmp_path, gpus(*capabilities))
    for wanted in ("=AUTO", "=ON"):
        said = machine.says(wanted)
        assert f"by nvcc 13.0 ({tmp_path}/bin/nvcc) for {built_for}, which takes about" in said
        assert f"the CUDA engine ({experimental.ONE_GPU})" in said
        assert "With pip: -C cmake.define.JAXRING_CUDA=OFF" in said


@pytest.mark.parametrize(
    ("driver", "why"),
    [
        (NO_GPU, "no GPU"),
        (gpus(), "no GPU"),
        (gpus("7.5"), "no GPU of compute capability 8.0 or later (one is of 7.5)"),
    ],
)
def test_without_a_gpu_none_is_built_unless_asked_for(tmp_path, driver, why):
    machine = Machine(tmp_path, driver)
    said = machine.says("=AUTO")
    assert f"CPU engine only: there is nvcc 13.0 ({tmp_path}/bin/nvcc), but {why}. JAXRING_CUDA=ON builds" in said
    assert f"the CUDA engine ({experimental.ONE_GPU})" in said
    assert "for sm_90, which takes about" in machine.says("=ON")


@pytest.mark.parametrize("wanted", ["=AUTO", "=ON"])
def test_architectures_that_are_named_are_built(no_gpu, wanted):
    assert "for sm_80, sm_90, sm_100, sm_120, which" in no_gpu.says(wanted, "_ARCHITECTURES=all")
    assert "for sm_80, sm_100, which" in no_gpu.says(wanted, "_ARCHITECTURES=80;100")


def test_without_cuda_or_without_nvcc(no_gpu):
    assert no_gpu.says("=OFF", "_ARCHITECTURES=all") == "-- jaxring: CPU engine only: JAXRING_CUDA is OFF"
    (no_gpu.folder / "bin/nvcc").write_text("#!/bin/sh\nexit 1\n")
    assert no_gpu.says("=AUTO", "_ARCHITECTURES=all") == "-- jaxring: CPU engine only: there is no nvcc that works"
    assert "JAXRING_CUDA=ON, but no working nvcc" in no_gpu.says("=ON")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["=YES"], "JAXRING_CUDA is 'YES': choose AUTO, ON or OFF"),
        (["=ON", "_ARCHITECTURES=sm_90"], "JAXRING_CUDA_ARCHITECTURES is 'sm_90': choose all, or a list such as 80;90"),
        (["=ON", "_ARCHITECTURES=80,90"], "JAXRING_CUDA_ARCHITECTURES is '80,90': choose all, or a list such as 80;90"),
    ],
)
def test_what_cannot_be_is_an_error(no_gpu, wrong, says):
    assert says in no_gpu.says(*wrong)


def test_what_a_gpu_has_run_is_not_called_experimental(tmp_path, no_gpu):
    """CMake reads the record of experimental parts."""
    for name in ("cmake", "jaxring/plan/gpu"):
        (tmp_path / name).mkdir(parents=True)
    script = shutil.copy(SCRIPT, tmp_path / "cmake")
    text = (ROOT / "jaxring/plan/gpu/experimental.py").read_text()
    assert text.count('"cuda": ONE_GPU') == 1
    (tmp_path / "jaxring/plan/gpu/experimental.py").write_text(text.replace('"cuda": ONE_GPU', '"cuda": ""'))
    assert "and the CUDA engine by nvcc 13.0" in no_gpu.says("=ON", script=script)
