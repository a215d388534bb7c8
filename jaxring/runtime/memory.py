"""The memory that results lie in: how much of what is freed the C library keeps for the next ones.

By default glibc's malloc gives large blocks back to the system when they are freed, and XLA frees a result when nobody
uses it any more. So the next one comes in fresh pages, which the system clears and hands out one by one: for results of
1 to 64 MiB that takes about as long as an all-reduce between processes.

It costs memory: blocks that lie idle at the end of the heap, and up to seven of a size before a freed one serves again.
XLA asks for aligned blocks, of which malloc cuts small ends; it keeps seven ends of a size in a list of the thread's,
and while an end is there the block before it is too small to be aligned anew.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jaxring import _native

if TYPE_CHECKING:
    from collections.abc import Mapping

# What a user can say of the same thing: mallopt(3) and the glibc manual, "Memory Allocation Tunables".
_THRESHOLDS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")
_TUNABLES = re.compile(r"glibc\.malloc\.(mmap_threshold|trim_threshold|top_pad|mmap_max)=")


def keep_freed_blocks(nbytes: int, environ: Mapping[str, str]) -> bool:
    """Has malloc keep freed blocks of up to ``nbytes``, of the whole process. False where it is left alone: where
    ``nbytes`` is 0, where the environment says what malloc keeps, and where the C library has no such thing.
    """
    said = any(name in environ for name in _THRESHOLDS) or _TUNABLES.search(environ.get("GLIBC_TUNABLES", ""))
    return bool(nbytes) and not said and _native.keep_freed_blocks(nbytes)
