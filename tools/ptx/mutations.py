"""Faults of a compiler: what may go wrong in PTX, and which test must notice it.

A mutation replaces instructions of some kernels by others, or by none. The translator writes both, and the variable
PTX_MUTATION of a test says which mutation it runs (emit.py). Some mutations no instruction of the table can say: the
translator must refuse them.
"""

import dataclasses
import re

from tools.ptx.parse import Instruction, parse_instructions

_SIMPLE, _LL, _LL128 = (rf"Ptx_PlayKernelINS0_{name}ELi[01]EEE" for name in ("6Simple", "2LL", "5LL128"))
_MOVES = "Ptx_PlayKernelINS0_6SimpleELi0EEE"
_FUSED, _MULTICAST, _ONE_SHOT = "Ptx_FusedKernelILi1E", "Ptx_MulticastKernel", "Ptx_OneShotKernelILNS_5DTypeE13ELi4E"
_ANY_ONE_SHOT, _EPILOGUE, _STAGED = "Ptx_AnyOneShotKernel", "Ptx_EpilogueKernelINS0_5SlotsE", "Ptx_Staged"
_VECTOR = r"(\[[^\]]*\]), \{([^,]*),([^,]*),[^}]*\};"
_LOADED = r"\{([^,]*),([^,]*),([^,]*),([^}]*)\}, (\[[^\]]*\]);"


@dataclasses.dataclass(frozen=True)
class Mutation:
    kind: str
    what: str
    kernels: str  # matches the beginning of the functions' names
    pattern: str  # of an instruction's text
    becomes: str = ""
    test: str = "ptx_mutation_test"
    case: str = "without a mutation the results are right"
    second: bool = False  # only each second instruction that matches
    race: bool = False  # only ThreadSanitizer notices it: the machine performs loads in the order of the text
    merged: bool = False  # a load is done only if its address is not that of the time before

    def applied(self, instruction: Instruction) -> list[Instruction] | None:
        """What stands in the instruction's place; None if it stays."""
        text, places = re.subn(rf"\A(@!?\S+ )?{self.pattern}\Z", rf"\g<1>{self.becomes}", str(instruction))
        if not places:
            return None
        if self.merged:
            return [instruction]
        return parse_instructions(text, instruction.line) if self.becomes else []


KINDS = {
    "refused": "text that the translator does not know",
    "order": "a fence or an order that is missing",
    "barrier": "a barrier of threads that is missing",
    "wait": "a wait for bulk copies that is missing",
    "dropped": "an access that is missing",
    "merged": "accesses that are merged or narrowed",
}
_EPOCHS = {"test": "ptx_epoch_barrier_test", "case": "a rank that is aborted before its peer begins"}
_SIZES = {"test": "ptx_multicast_test", "case": "sizes"}
_ONCE = {"case": "one-shot all-reduces without a mutation"}
_FUSES = {"test": "ptx_fused_test", "case": "fused collectives"}
_COPIES = {"test": "ptx_staging_test", "case": "results are right, whichever ranks copy"}
_TRAPS = {"test": "ptx_failure_test", "case": "a launch that fails traps"}

MUTATIONS = [
    # Orders.
    Mutation("order", "releases are relaxed", _SIMPLE, r"st\.release\.sys(\S+) (.*)", r"st.relaxed.sys\2 \3"),
    Mutation("order", "lines are stored weakly", _LL, r"st\.relaxed\.sys\.global\.v4\.u32 (.*)",
             r"st.global.v4.u32 \2"),
    Mutation("order", "threads do not meet before a line of 128 bytes", _LL128, r"bar\.warp\.sync .*"),
    Mutation("order", "no fence of epoch barriers", _SIMPLE, r"fence\.sc\.sys ?;", **_EPOCHS),
    Mutation("order", "no fence behind a launch's own copies", _STAGED, r"fence\.sc\.sys ?;", **_COPIES),
    Mutation("order", "no fence before a trap", _FUSED, r"fence\.sc\.sys ?;", **_TRAPS),
    Mutation("order", "no fence between aliases", _MULTICAST, r"fence\.proxy\.alias ?;", **_SIZES),
    Mutation("order", "no proxy fence before bulk copies", _SIMPLE, r"fence\.proxy\.async\.global ?;"),
    Mutation("order", "barriers of bulk copies are not made known", _SIMPLE, r"fence\.mbarrier_init\S+ ?;"),
    Mutation("order", "acquires are relaxed", _SIMPLE, r"ld\.acquire\.sys(\S+) (.*)", r"ld.relaxed.sys\2 \3",
             race=True),
    # Barriers.
    Mutation("barrier", "no barrier around the length of a scratch chunk", _SIMPLE, r"bar\.sync 0;",
             case="empty chunks in scratch memory"),
    Mutation("barrier", "a vote of a block without its barrier", _SIMPLE, r"bar\.red\.or\.pred (\S+), 0, (\S+);",
             r"mov.pred \2, \3;"),
    Mutation("barrier", "a vote of a warp without its barrier", _LL128, r"vote\.sync\.any\.pred (\S+), (\S+), \S+;",
             r"mov.pred \2, \3;"),
    Mutation("barrier", "no barrier between sending and overwriting in place", _ANY_ONE_SHOT, r"bar\.sync 0;",
             second=True, test="ptx_fused_test", case="one-shot all-reduces"),
    Mutation("barrier", "no barrier at the end of a one-shot launch", _ONE_SHOT, r"bar\.red\.or\.pred (\S+), 0, (\S+);",
             r"mov.pred \2, \3;", **_ONCE),
    Mutation("barrier", "no barrier between slices in multicast memory", _MULTICAST, r"bar\.sync 0;", **_SIZES),
    Mutation("barrier", "no barriers of a warp around an epilogue's functions", _EPILOGUE, r"bar\.warp\.sync .*",
             test="ptx_epilogue_barriers_test", case="a ring that halves sums"),
    # Waits.
    Mutation("wait", "stages are loaded again before they were read", _SIMPLE, r"cp\.async\.bulk\.wait_group\.read 1;"),
    Mutation("wait", "bulk copies are announced before they are stored", _SIMPLE, r"cp\.async\.bulk\.wait_group 0;"),
    Mutation("wait", "bulk copies are of no group", _SIMPLE, r"cp\.async\.bulk\.commit_group ?;"),
    Mutation("wait", "no wait for bulk copies to arrive", _SIMPLE, r"mbarrier\.try_wait\S+ (\S+), .*",
             r"mov.pred \2, -1;"),
    # Dropped accesses.
    Mutation("dropped", "a vector is not stored", _MOVES, r"st\.global\.v4\.u32 .*"),
    Mutation("dropped", "a bulk copy is not stored", _SIMPLE, r"cp\.async\.bulk\.global\.shared.*"),
    Mutation("dropped", "a line is not stored", _LL, r"st\.relaxed\.sys\.global\.v4\.u32 .*"),
    Mutation("dropped", "a line of 128 bytes is not stored", _LL128, r"st\.relaxed\.sys\.global\.v4\.u32 .*"),
    Mutation("dropped", "a line that begins a launch is not stored", _SIMPLE, r"st\.relaxed\.sys\.global\.v4\.u32 .*"),
    Mutation("dropped", "a counter is not stored", _SIMPLE, r"st\.release\.sys\.global\.u64 .*"),
    Mutation("dropped", "a credit is not stored", _LL, r"st\.relaxed\.sys\.global\.u64 .*"),
    Mutation("dropped", "shared memory is not stored to", _SIMPLE, r"st\.shared\.u64 .*"),
    Mutation("dropped", "an element is not stored", _FUSED, r"st\.u32 .*", **_FUSES),
    Mutation("dropped", "the number of launches is not stored", _ONE_SHOT, r"st\.global\.u64 .*", **_ONCE),
    Mutation("dropped", "no replica is stored to", _MULTICAST, r"multimem\.st.*", **_SIZES),
    Mutation("dropped", "lanes that ended are not counted", _FUSED, r"red\.relaxed.*", **_TRAPS),
    # Merged and narrowed accesses.
    Mutation("merged", "a vector is stored by its first half", _MOVES, rf"st\.global\.v4\.u32 {_VECTOR}",
             r"st.global.v2.u32 \2, {\3,\4};"),
    Mutation("merged", "a vector is loaded as its first word", _MOVES,
             rf"ld\.relaxed\.sys\.global\.v4\.u32 {_LOADED}",
             r"ld.relaxed.sys.global.u32 \2, \6; mov.b32 \3, \2; mov.b32 \4, \2; mov.b32 \5, \2;"),
    Mutation("merged", "two words of shared memory are stored as one", _SIMPLE,
             r"st\.shared\.v2\.u32 (\[[^\]]*\]), \{([^,]*),[^}]*\};", r"st.shared.u32 \2, \3;"),
    Mutation("merged", "two lines that begin a launch are stored as one", _SIMPLE,
             r"st\.relaxed\.sys\.global\.v4\.u32 .*", second=True),
    Mutation("merged", "a polled counter is loaded once", _SIMPLE, r"ld\.acquire\.sys\.global\.u64 .*", merged=True),
    Mutation("merged", "a polled line is loaded once", _LL, r"ld\.relaxed\.sys\.global\.v4\.u32 .*", merged=True),
    Mutation("merged", "a polled line of 128 bytes is loaded once", _LL128, r"ld\.relaxed\.sys\.global\.v4\.u32 .*",
             merged=True),
    Mutation("merged", "lines of all peers are loaded once", _ONE_SHOT, r"ld\.relaxed\.sys\.global\.v4\.u32 .*",
             merged=True, **_ONCE),
]  # fmt: skip

# What is written for another and must be refused: a pattern of the text of a .ptx file, by the file's name.
REFUSED = [
    ("an unknown instruction", "messages", r"\badd\.s32\b", "shfl.sync.add.s32"),
    ("an unknown fence", "direct", r"fence\.sc\.sys;", "fence.sc.cluster;"),
    ("a release of a narrower scope", "direct", r"st\.release\.sys\.", "st.release.gpu."),
    ("a line stored by halves", "one_shot", rf"st\.relaxed\.sys\.global\.v4\.u32\s+{_VECTOR}",
     r"st.relaxed.sys.global.v2.u32 \1, {\2, \3};"),
    ("a barrier of another number", "direct", r"bar\.sync\s+0;", "bar.sync 1;"),
    ("a vote of another kind", "lane_kernels", r"vote\.sync\.any\.pred", "vote.sync.ballot.b32"),
    ("an accumulator of another width", "multicast", r"add\.acc::f32\.v4\.f16x2", "add.v4.f16x2"),
    ("a register that there is not", "copy_barrier", r"trap;", "mov.b32 %r99999, 0; trap;"),
]  # fmt: skip
