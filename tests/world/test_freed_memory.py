"""What malloc keeps: told once there is a collective, not where the user has said it."""

import os
import pathlib
import subprocess
import sys

import pytest

from jaxring import _native
from jaxring.runtime import freed_memory

PROGRAM = pathlib.Path(__file__).with_name("worker_memory.py")


@pytest.mark.parametrize(
    ("environ", "asked"),
    [
        ({}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.trim_threshold=4096"}, False),
        ({"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0"}, False),
        ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False),
        ({"MALLOC_MMAP_THRESHOLD_": "131072"}, False),
    ],
)
def test_what_the_environment_says_of_malloc_stays(monkeypatch, environ, asked):
    calls = []
    monkeypatch.setattr(_native, "keep_freed_blocks", lambda nbytes: calls.append(nbytes) or True)
    assert freed_memory.keep_freed_blocks(environ) == asked
    assert calls == [64 << 20] * asked


def mapped_blocks(extra):
    """Before any collective, and after the first: how many blocks of malloc's are mappings of their own, of four."""
    run = subprocess.run(
        [sys.executable, PROGRAM], env=os.environ | extra, capture_output=True, text=True, timeout=120, check=True
    )
    return [int(word) for word in run.stdout.split()]


def test_large_blocks_come_from_the_heap_after_the_first_collective():
    assert mapped_blocks({}) == [4, 0]


def test_malloc_is_left_alone_on_request():
    assert mapped_blocks({"MALLOC_MMAP_THRESHOLD_": "131072"}) == [4, 4]
