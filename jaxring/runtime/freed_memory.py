"""The memory of results: how much freed memory the C library keeps for the next ones.

By default glibc's malloc returns large blocks to the system when they are freed, and XLA frees a result after its last
use. So the next result is in fresh pages, which the system clears and maps one by one. For results of 1 to 64 MiB that
takes about as long as an all-reduce between processes.

Keeping blocks costs memory: those that are idle at the end of the heap, and up to seven of a size before a freed one is
used again. XLA asks for aligned blocks, so malloc cuts off small ends. It keeps seven ends of a size in a per-thread
list, and as long as an end is in use, the block before it is too small to be aligned again.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jaxring import _native

if TYPE_CHECKING:
    from collections.abc import Mapping

# Results above this size get fresh pages.
_KEPT_BYTES = 1 << 26
# The user's own settings of the same thing: mallopt(3) and the glibc manual, "Memory Allocation Tunables".
_THRESHOLDS = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")
_TUNABLES = re.compile(r"glibc\.malloc\.(mmap_threshold|trim_threshold|top_pad|mmap_max)=")


def keep_freed_blocks(environ: Mapping[str, str]) -> bool:
    """Have malloc keep freed blocks of up to 64 MiB for the next results, and four times that at the end of its heap.

    This is for the whole process. Returns False where malloc is unchanged: where the environment sets its thresholds
    already, and where the C library has no such option.
    """
    said = any(name in environ for name in _THRESHOLDS) or _TUNABLES.search(environ.get("GLIBC_TUNABLES", ""))
    return not said and _native.keep_freed_blocks(_KEPT_BYTES)
