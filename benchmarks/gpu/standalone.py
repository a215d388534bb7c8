"""Collectives among ranks of one process that share its GPUs, without XLA: for tests and measurements of kernels.

Under JAX a process has one rank per GPU; here any number of ranks can share one.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxring.plan import dtypes, protocols
from jaxring.plan.gpu.lanes import one_shot_bytes
from jaxring.plan.schedule import Spec
from jaxring.runtime import schedules
from jaxring.runtime.cuda import copy_engine
from jaxring.runtime.cuda import nvls as cuda_nvls
from jaxring.runtime.cuda.rank_group import Group, GroupRank, Shape, wires

if TYPE_CHECKING:
    import numpy.typing as npt

    from jaxring.plan.schedule import Schedule

_names = itertools.count()


class StandaloneResult(NamedTuple):
    """Each rank's output as a flat array, from the last launch and from one with the other inputs; microseconds of a
    launch on all ranks, one after another without waiting, and the median of launches that are waited for one by one.
    Both are 0 where nothing was timed, the second also in a graph."""

    outputs: list[npt.NDArray[Any]]
    other_outputs: list[npt.NDArray[Any]]
    us: float
    waited_us: float


class How(NamedTuple):
    """What plays a schedule. ``fused``: the number of a fused collective in place of the step table; ``copies``: the
    copy engines do; ``nvls``: the NVLink switch does. ``bulk_bytes``: from how many bytes on slices go by bulk copies,
    0 for never."""

    fused: int = -1
    copies: bool = False
    nvls: bool = False
    bulk_bytes: int = 0


_KERNELS = How()


class Ranks:
    """``count`` ranks, dealt to the GPUs in turn. ``native`` is a started CUDA engine's module.

    ``placement``: the domain of each rank (default: one domain); ranks of different domains use the proxy.
    ``lanes`` at most; ``slot_bytes`` of each protocol's eight slots; ``threads`` of a lane; ``staging_bytes`` of what
    copies land in; ``multicast_bytes`` of multicast memory; ``stage_bytes`` of what a peer pushes to: twice the largest
    operand of the one-shot all-reduce, by default of what the planner gives it.
    """

    def __init__(
        self,
        native: Any,
        count: int,
        *,
        lanes: int = 16,
        slot_bytes: int = 131072,
        threads: int = 384,
        placement: tuple[int, ...] = (),
        staging_bytes: int = copy_engine.STAGING_BYTES,
        multicast_bytes: int = cuda_nvls.MEMORY_BYTES,
        stage_bytes: int = 0,
        timeout: float = 30.0,
    ) -> None:
        self.native, self.count, self.lanes, self.threads, self.timeout = native, count, lanes, threads, timeout
        self.staging_bytes, self.multicast_bytes = staging_bytes, multicast_bytes
        self.placement = placement or (0,) * count
        gpus = native.device_count()
        members = [GroupRank(0, r % gpus, domain, f"rank {r}") for r, domain in enumerate(self.placement)]
        self.group = Group(
            native,
            f"standalone {next(_names)}",
            members,
            Shape(lanes, wires(8, slot_bytes), stage_bytes or 2 * one_shot_bytes(count)),
            None,
            timeout,
        )
        self.group.prepare()

    def schedule(self, collective: str, algorithm: str, channels: int, **extra: Any) -> Schedule:
        """The schedule of a collective among these ranks; ``extra``: root or perm."""
        spec = Spec(collective, self.count, algorithm, channels=channels, placement=self.placement, **extra)
        return schedules.schedule("both", spec)

    def why_not_nvls(self) -> str:
        """Why they cannot go through multicast memory, or ""."""
        gpus = self.native.device_count()
        if self.count > gpus or self.count < 2:
            return f"{self.count} ranks do not have a GPU each of {gpus}, or are too few"
        without = [gpu for gpu in range(self.count) if not self.native.has_multicast(gpu)]
        return f"the driver reports no multicast for GPU {without[0]}" if without else ""

    def run(
        self,
        schedule: Schedule,
        protocol: str,
        inputs: list[npt.NDArray[Any]],
        others: list[npt.NDArray[Any]],
        op: str | None = None,
        how: How = _KERNELS,
        *,
        launches: int = 0,
        in_graph: bool = False,
    ) -> StandaloneResult:
        """Run a collective for its results and ``launches`` times for each time, with both sets of inputs in turn.

        ``inputs``, ``others``: each rank's, blocks one after the other. ``in_graph``: the timed launches are nodes of
        one CUDA graph, so that no host's work is in their time. ``protocol``: one of GPUs; memory for no messages.
        """
        element = inputs[0].dtype
        plan = self._plan(schedule, protocol, element.name, inputs[0].size // schedule.in_blocks, op, how)
        given, other = ([np.ascontiguousarray(x).tobytes() for x in each] for each in (inputs, others))
        found = self.native.run_standalone(self.group.communicator, plan, given, other, launches, in_graph)
        outputs, other_outputs = (
            [np.frombuffer(output, element) for output in each] for each in (found.outputs, found.other_outputs)
        )
        return StandaloneResult(outputs, other_outputs, found.us, found.waited_us)

    def run_filled(
        self,
        schedule: Schedule,
        protocol: str,
        block: int,
        values: tuple[float, float],
        op: str | None = None,
        how: How = _KERNELS,
        *,
        launches: int = 0,
        in_graph: bool = False,
    ) -> StandaloneResult:
        """The same where all elements of all ranks' inputs, of ``block`` float32 a block, are the first of ``values``,
        and those of the other inputs the second. An output is one element, since all must be equal: RuntimeError."""
        plan = self._plan(schedule, protocol, "float32", block, op, how)
        words = [int(np.float32(value).view(np.uint32)) for value in values]
        found = self.native.run_standalone_words(self.group.communicator, plan, *words, launches, in_graph)
        outputs, other_outputs = (
            [np.array([word], np.uint32).view(np.float32) for word in each]
            for each in (found.outputs, found.other_outputs)
        )
        return StandaloneResult(outputs, other_outputs, found.us, found.waited_us)

    def _plan(self, schedule: Schedule, protocol: str, dtype: str, block: int, op: str | None, how: How) -> Any:
        plan = self.native.PlanBuilder()
        plan.set_identity(f"{schedule.spec.collective} of a standalone run", self.timeout, schedule.spec.root, 0)
        code = -1 if op is None else dtypes.REDUCE_OPS[op]
        plan.set_data(dtypes.dtype_code(dtype), code, self.count if op == "mean" else 0, block)
        if how.copies:
            self.group.offer_staging(self.staging_bytes)
            copy_engine.fill(self.native, plan, schedule, range(self.count), True)
        elif how.nvls:
            self.group.multicast(self.multicast_bytes)
            cuda_nvls.fill(plan, schedule, range(self.count), schedule.nlanes, self.threads, True)
        else:
            self._play(plan, schedule, protocol, how.fused)
            plan.set_bulk(how.bulk_bytes)
        return plan

    def _play(self, plan: Any, schedule: Schedule, protocol: str, fused: int) -> None:
        plan.set_shape(
            schedule.in_blocks, schedule.out_blocks, schedule.pieces, schedule.scratch_chunks, schedule.nlanes
        )
        plan.set_kernel(protocols.GPU[protocol], fused, self.threads, True, True)
        self.group.connect({r: set().union(*schedule.message_peers(r)) for r in range(self.count)}, protocol)
        for rank in range(self.count):
            plan.add_local(rank, *schedules.table(schedule, rank), schedule.uses_memory(rank))
