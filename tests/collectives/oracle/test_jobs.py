"""JAXRING_CHECKSUM=oracle in jobs of two processes: what the user gets to see of a wrong result."""

from __future__ import annotations

import pathlib
import re

import pytest

from tests.stress.stress_jobs import run_job

WORKER = pathlib.Path(__file__).with_name("worker_oracle.py")
SAYS = (
    r"execution {0}: .*JAXRING_CHECKSUM=oracle: all_reduce sum over 'x' \(worker_oracle\.py:\d+\): element \[3\] of "
    r"rank 1's result of shape \[8\] float32 is {1}, but the operands of all ranks make {2}; 1 of 8 elements differ"
)
NEVER = 99


def run(tmp_path, checksum, way, execution, **extra):
    arguments = [str(WORKER), way, str(execution)]
    return run_job(tmp_path, arguments, processes=2, JAXRING_CHECKSUM=checksum, **extra)


@pytest.mark.multiprocess
@pytest.mark.parametrize("way", ["plain", "install"])
@pytest.mark.parametrize("checksum", ["oracle", "oracle:3"])
@pytest.mark.sampled(4)
def test_the_user_is_told_of_a_wrong_result(tmp_path, checksum, way):
    other, wrong = run(tmp_path, checksum, way, 3)
    assert re.search(SAYS.format(3, "7.0", "6.0"), wrong, re.DOTALL), wrong
    assert "no error" not in other


@pytest.mark.multiprocess
@pytest.mark.parametrize("way", ["plain", "install"])
@pytest.mark.sampled(2)
def test_of_three_executions_one_is_checked(tmp_path, way):
    assert [text.strip() for text in run(tmp_path, "oracle:3", way, 2)] == ["no error"] * 2


@pytest.mark.multiprocess
def test_messages_are_checked_as_well(tmp_path):
    faults = "corrupt=1,data_only=1,seed=1"
    for text in run(tmp_path, "oracle:3", "plain", NEVER, JAXRING_FAULTS=faults):
        assert re.search(r"execution 0: DATA_LOSS: jaxring\.all_\w+ .* a message arrived damaged: ", text), text
