"""The algorithm `nvls`: NVLink switches reduce, and store to all GPUs, through multicast memory.

For ranks of one domain that have a GPU each, where the driver reports multicast. The order of a sum is the switch's, so
its bits are those of no schedule; all ranks get the same ones.
"""

from __future__ import annotations

from jaxring.plan.collectives import COLLECTIVES

NAME = "nvls"
# The collectives that it serves.
SERVED = tuple(name for name, collective in COLLECTIVES.items() if collective.gpu_multicast is not None)
