"""The algorithm `nvls`: NVLink switches reduce, and store to all GPUs, through multicast memory.

For ranks of one domain that have a GPU each, where the driver reports multicast. The order of a sum is the switch's, so
its bits are those of no schedule; all ranks get the same ones.
"""

from __future__ import annotations

NAME = "nvls"
# The kernels' numbers of the collectives that go this way.
KINDS = {"all_reduce": 0, "reduce_scatter": 1, "all_gather": 2}
# Values of the setting NVLS_ENABLE.
NEVER, CHOSEN, ASKED = 0, 1, 2
