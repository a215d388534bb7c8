"""Which GPU kernel serves what: the page says what the planner's tables say, and the engine has these kernels."""

from __future__ import annotations

import itertools
import re

import pytest

from jaxring.plan import dtypes, protocols
from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.gpu import kernels
from tests import ROOT

COMPILED = set(re.findall(r"\w+Kernel<[\w, ]+>", (ROOT / "docs/cuda-resources.txt").read_text()))


def test_the_page_has_the_tables_as_they_are():
    page = (ROOT / "docs/cuda.md").read_text()
    for lines in (kernels.table(), kernels.paths_table()):
        assert "\n" + "\n".join(lines) + "\n\n" in page, "run python tools/gpu_kernels.py --write"


def served():
    for name, facts in COLLECTIVES.items():
        for dtype, ranks, nbytes in itertools.product(dtypes.DTYPES, (1, 2, 3, 4, 8), (64, 1 << 20)):
            for op in ("sum", "max") if facts.reduces else (None,):
                for protocol in protocols.ON_GPUS:
                    yield kernels.kernel_of(name, ranks, nbytes, dtype, op, "direct", protocol)


def test_each_kernel_serves_something_and_what_serves_is_compiled():
    others = {"PointToPointKernel<Simple, 0>", "ExtentsKernel<0>", "MulticastKernel<0>"}
    others |= {"EpilogueKernel<LL>", "EpilogueKernel<Slots>"}  # which of them the launcher takes, by the protocol
    # In place of others, where launches copy their buffers.
    others |= {f"StagedKernel<{protocol}, {width}>" for protocol in ("Simple", "LL") for width in (0, 1, 2, 4)}
    others |= {f"StagedFusedKernel<{width}>" for width in (0, 1, 2, 4)}
    others |= {"StagedEpilogueKernel<LL>", "StagedEpilogueKernel<Slots>"}
    assert set(served()) | others == COMPILED


@pytest.mark.parametrize("nbytes", [8 << 10, 32 << 10, 64 << 10, 128 << 10])
def test_a_small_all_reduce_has_less_on_its_critical_path_than_before(nbytes):
    before, now = kernels.critical_path_of_before(8, nbytes), kernels.critical_path(8, nbytes)
    assert now.trips < before.trips
    # Above 64 KiB it was by two shots, which move fewer bytes and wait more often.
    assert (now.stored < before.stored) == (nbytes <= 64 << 10)
    assert (now.kernels, now.host_reads) == (1, 0)
    assert now.fences <= before.fences


def test_the_critical_path_of_32_kib_among_8_ranks():
    assert kernels.critical_path(8, 32 << 10) == (16, 30720, 32768, 4, 0, 1, 0)
