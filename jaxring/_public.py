"""What `import jaxring` offers: one place that gathers the public names."""

from jaxring import data_parallel, epilogues, lax, moe, profiler, recovery, sharded
from jaxring.collectives import all_gather, all_reduce, all_to_all, barrier, permute, reduce_scatter
from jaxring.communicator import Communicator
from jaxring.dropin import install, installed, uninstall
from jaxring.dropin.explaining import explain
from jaxring.errors import (
    JaxringError,
    JoinError,
    MemoryLimitError,
    PlanError,
    ReplicatedOperandWarning,
    SettingsError,
)
from jaxring.exporting import export_checks
from jaxring.overlap import (
    Handle,
    all_gather_start,
    all_reduce_start,
    all_to_all_start,
    broadcast_start,
    permute_start,
    reduce_scatter_start,
)
from jaxring.overlapped.buckets import overlap_gradients
from jaxring.overlapped.matmul import all_gather_matmul, matmul_reduce_scatter
from jaxring.p2p import new_token, ragged_all_to_all, recv, send
from jaxring.plan.user import register_algorithm
from jaxring.recovery import abort, commit, rebuild, resume, shrink, suspend
from jaxring.reproducible import reproducible_sum
from jaxring.resharding.api import reshard
from jaxring.rooted import broadcast, gather, reduce, scatter
from jaxring.runtime import build_info, counters, plans
from jaxring.tracing.casting import pcast
from jaxring.world.identity import version as _version

__version__ = _version()

__all__ = [
    "Communicator",
    "Handle",
    "JaxringError",
    "JoinError",
    "MemoryLimitError",
    "PlanError",
    "ReplicatedOperandWarning",
    "SettingsError",
    "__version__",
    "abort",
    "all_gather",
    "all_gather_matmul",
    "all_gather_start",
    "all_reduce",
    "all_reduce_start",
    "all_to_all",
    "all_to_all_start",
    "barrier",
    "broadcast",
    "broadcast_start",
    "build_info",
    "commit",
    "counters",
    "data_parallel",
    "epilogues",
    "explain",
    "export_checks",
    "gather",
    "install",
    "installed",
    "lax",
    "matmul_reduce_scatter",
    "moe",
    "new_token",
    "overlap_gradients",
    "pcast",
    "permute",
    "permute_start",
    "plans",
    "profiler",
    "ragged_all_to_all",
    "rebuild",
    "recovery",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_start",
    "register_algorithm",
    "reproducible_sum",
    "reshard",
    "resume",
    "scatter",
    "send",
    "sharded",
    "shrink",
    "suspend",
    "uninstall",
]
