"""A CUDA protocol is one record for planning: a tree to which one was added prices, offers, and refuses it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PLAN = Path(__file__).parents[2] / "jaxring" / "plan"
FIRST = '        Protocol("ll", cpu=1, '
RECORD = (
    '        Protocol("hop", cpu=None, gpu=OnGpus(3, "Hop", data_share=1.0, hop_us=0.1, slot_bytes=1 << 20, '
    "whole_lines=True, epilogues=False)),\n"
)
USE = """
import sys

# The finder of an editable install would give the package that is under test everywhere else.
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
from jaxring.plan import protocols
from jaxring.plan.epilogue import EpilogueSpec
from jaxring.plan.gpu.kernels import kernel_of
from jaxring.plan.gpu.tuner import choose


def chosen(**options):
    return choose("all_reduce", (0, 0), 1 << 10, "float32", 8, "ring", **options)


def refused(function, *arguments, **options):
    try:
        function(*arguments, **options)
    except ValueError as error:
        print(error)


print(chosen(whole_lines=True).protocol, chosen().protocol, *protocols.MESSAGES, protocols.GPU["hop"])
print(kernel_of("all_reduce", 2, 1 << 10, "float32", "sum", "ring", "hop"))
refused(chosen, protocol="hop")
refused(chosen, protocol="hop", whole_lines=True, epilogue=EpilogueSpec(functions=("scale",), result="float32"))
refused(protocols.check, "hop", "CPU")
"""


def test_one_record_adds_a_protocol_to_planning(tmp_path: Path) -> None:
    package = tmp_path / "jaxring"
    shutil.copytree(PLAN, package / "plan", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "__init__.py").touch()
    records = package / "plan" / "protocols.py"
    text = records.read_text()
    assert text.count(FIRST) == 1
    records.write_text(text.replace(FIRST, RECORD + FIRST))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert ended.returncode == 0, ended.stderr
    choice, kernel, lines, epilogue, engine = ended.stdout.splitlines()
    assert choice == "hop ll simple ll ll128 hop 3"
    assert kernel == "PlayKernel<Hop, 1>"
    assert lines.startswith("protocol 'hop' cannot serve this all_reduce: it needs 128-byte stores that arrive whole")
    assert lines.endswith("; use 'll' or 'simple'")
    assert epilogue.endswith("no kernel applies an epilogue by it; use 'll' or 'simple'")
    assert engine == "protocol 'hop' is for ranks on GPUs; on CPUs there are memory, simple, ll"
