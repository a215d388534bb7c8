"""The instructions that are translated: one table of opcodes, shapes of operands and C++ statements.

An opcode's braces list alternatives; the form's text names the n-th choice by {0}, {1}, ... A shape says what each
operand must be: r a register (or, read, a number), p a predicate register, m an address, s a special register or a
name, _ the sink, v2 and v4 registers in braces, l a label; anything else stands for itself. The statement names
operands by letters in order, {a}, {b}, ...; those of a vector are {a0}, {a1}, ... Its names are defined in
ffi/cuda/sim/ptx/registers.h and ffi/cuda/sim/ptx/memory.h. Registers are unsigned integers that hold bits.
"""

import dataclasses
import itertools
import re

_INT = "{u16,s16,u32,s32,u64,s64}"
_BITS = "{b16,b32,b64}"
_COMPARE = "{lt,le,gt,ge,eq,ne}"
_ALL = "{u16,s16,u32,s32,u64,s64,b16,b32,b64,f32,f64}"

# opcode, shapes, statement
_TABLE = [
    # Moves.
    ("mov.{b16,u16,b32,u32,b64,u64,f32,f64}", "r r", "{a} = {b};"),
    ("mov.pred", "p p", "{a} = {b};"),
    ("mov.{u32,b32,u64,b64}", "r s", "{a} = {b};"),
    ("mov.b32", "v2 r", "{a0} = u16({b}); {a1} = u16({b} >> 16);"),
    ("cvta.to.global.u64", "r r", "{a} = {b};"),
    ("selp.{b16,u16,s16,b32,u32,s32,b64,u64,s64,f32,f64}", "r r r p", "{a} = {d} ? {0}_({b}) : {0}_({c});"),
    # Integers.
    (f"add.{_INT}", "r r r", "{a} = {0}_({b}) + {0}_({c});"),
    (f"sub.{_INT}", "r r r", "{a} = {0}_({b}) - {0}_({c});"),
    ("mul.lo.{u32,s32,u64,s64}", "r r r", "{a} = {0}_({b}) * {0}_({c});"),
    ("mul.wide.{u16,s16,u32,s32}", "r r r", "{a} = Wide<{0}>({b}) * Wide<{0}>({c});"),
    ("mul.hi.u64", "r r r", "{a} = HighProduct({b}, {c});"),
    ("mad.lo.{u32,s32}", "r r r r", "{a} = {0}_({b}) * {0}_({c}) + {0}_({d});"),
    ("div.{u32,u64}", "r r r", "{a} = {0}({b}) / {0}({c});"),
    ("rem.{u32,u64}", "r r r", "{a} = {0}({b}) % {0}({c});"),
    ("neg.{s16,s32,s64}", "r r", "{a} = 0 - {0}_({b});"),
    (f"min.{_INT}", "r r r", "{a} = {0}({b}) < {0}({c}) ? {0}_({b}) : {0}_({c});"),
    (f"max.{_INT}", "r r r", "{a} = {0}({b}) > {0}({c}) ? {0}_({b}) : {0}_({c});"),
    (f"and.{_BITS}", "r r r", "{a} = {0}({b}) & {0}({c});"),
    (f"or.{_BITS}", "r r r", "{a} = {0}({b}) | {0}({c});"),
    (f"xor.{_BITS}", "r r r", "{a} = {0}({b}) ^ {0}({c});"),
    (f"not.{_BITS}", "r r", "{a} = ~{0}({b});"),
    (f"shl.{_BITS}", "r r r", "{a} = ShiftLeft<{0}>({b}, u32({c}));"),
    ("shr.{u16,u32,u64,s16,s32,s64,b32,b64}", "r r r", "{a} = ShiftRight<{0}>({b}, u32({c}));"),
    ("bfi.{b32,b64}", "r r r r r", "{a} = Insert<{0}>({b}, {c}, u32({d}), u32({e}));"),
    ("prmt.b32", "r r r r", "{a} = Permute(u32({b}), u32({c}), u32({d}));"),
    ("lop3.b32", "r r r r r", "{a} = Logic3(u32({b}), u32({c}), u32({d}), u32({e}));"),
    # Predicates.
    ("and.pred", "p p p", "{a} = {b} && {c};"),
    ("or.pred", "p p p", "{a} = {b} || {c};"),
    ("xor.pred", "p p p", "{a} = {b} != {c};"),
    ("not.pred", "p p", "{a} = !{b};"),
    (f"setp.{_COMPARE}.{_ALL}", "p r r", "{a} = Is_{0}({1}({b}), {1}({c}));"),
    # Floats that differ, or of which one is NaN.
    ("setp.neu.{f32,f64}", "p r r", "{a} = Is_ne({0}({b}), {0}({c}));"),
    # Floats: rounded to nearest even, with the NaN of the hardware.
    ("add.rn.{f32,f64}", "r r r", "{a} = Float({0}({b}).value + {0}({c}).value);"),
    ("sub.rn.{f32,f64}", "r r r", "{a} = Float({0}({b}).value - {0}({c}).value);"),
    ("mul.rn.{f32,f64}", "r r r", "{a} = Float({0}({b}).value * {0}({c}).value);"),
    ("div.rn.{f32,f64}", "r r r", "{a} = Float({0}({b}).value / {0}({c}).value);"),
    ("sqrt.rn.{f32,f64}", "r r", "{a} = Float(std::sqrt({0}({b}).value));"),
    ("neg.f32", "r r", "{a} = {b} ^ 0x80000000u;"),
    ("neg.f64", "r r", "{a} = {b} ^ 0x8000000000000000u;"),
    # Conversions.
    ("cvt.{u16,u32,u64}.{u8,u16,u32,u64}", "r r", "{a} = {0}({1}({b}));"),
    ("cvt.{s16,s32,s64}.{s8,s16,s32,s64}", "r r", "{a} = {0}_({0}({1}({b})));"),
    ("cvt.rn.f32.{u32,u64}", "r r", "{a} = Float(static_cast<float>({0}({b})));"),
    ("cvt.rn.f64.{u32,u64}", "r r", "{a} = Float(static_cast<double>({0}({b})));"),
    ("cvt.f32.f16", "r r", "{a} = FromHalf(u16({b}));"),
    ("cvt.rn.f16x2.f32", "r r r", "{a} = ToHalves(f32({c}), f32({b}));"),
    ("cvt.rn.bf16x2.f32", "r r r", "{a} = ToBfloat16s(f32({c}), f32({b}));"),
    # Parameters and shared memory.
    ("ld.param.{u8,u16,u32,u64,s8,s32}", "r m", "{a} = {0}_(LoadParam<{0}>({b}));"),
    ("ld.param.v2.u32", "v2 m", "{a0} = LoadParam<u32>({b}); {a1} = LoadParam<u32>({b} + 4);"),
    ("ld.shared.{u8,u16,u32,u64}", "r m", "{a} = LoadShared<{0}, 1>({b})[0];"),
    ("ld.shared.v2.{u32,u64}", "v2 m", "auto v = LoadShared<{0}, 2>({b}); {a0} = v[0]; {a1} = v[1];"),
    (
        "ld.shared.v4.u32",
        "v4 m",
        "auto v = LoadShared<u32, 4>({b}); {a0} = v[0]; {a1} = v[1]; {a2} = v[2]; {a3} = v[3];",
    ),
    ("st.shared.{u8,u16,u32,u64}", "m r", "StoreShared<{0}, 1>({a}, {{{0}({b})}});"),
    ("st.shared.v2.{u32,u64}", "m v2", "StoreShared<{0}, 2>({a}, {{{0}({b0}), {0}({b1})}});"),
    (
        "st.shared.v4.{u8,u32}",
        "m v4",
        "StoreShared<{0}, 4>({a}, {{{0}({b0}), {0}({b1}), {0}({b2}), {0}({b3})}});",
    ),
    # Weak accesses to global memory. Addresses without a state space are global here, or the access is refused.
    ("ld.{global.u8,global.u16,global.u32,global.u64,u8,u16,u32,u64}", "r m", "{a} = LoadWeak<{0}, 1>({b})[0];"),
    ("ld.global.f32", "r m", "{a} = LoadWeak<u32, 1>({b})[0];"),
    ("ld.global.f64", "r m", "{a} = LoadWeak<u64, 1>({b})[0];"),
    ("ld.global.s32", "r m", "{a} = s32(LoadWeak<u32, 1>({b})[0]);"),
    ("ld.global.v2.{u8,u16,u32,u64}", "v2 m", "auto v = LoadWeak<{0}, 2>({b}); {a0} = v[0]; {a1} = v[1];"),
    (
        "ld.global{,.L1::no_allocate}.v4.{u8,u16,u32}",
        "v4 m",
        "auto v = LoadWeak<{1}, 4>({b}); {a0} = v[0]; {a1} = v[1]; {a2} = v[2]; {a3} = v[3];",
    ),
    ("st.{global.u8,global.u16,global.u32,global.u64,u8,u16,u32,u64}", "m r", "StoreWeak<{0}, 1>({a}, {{{0}({b})}});"),
    ("st.global.f32", "m r", "StoreWeak<u32, 1>({a}, {{u32({b})}});"),
    ("st.global.f64", "m r", "StoreWeak<u64, 1>({a}, {{u64({b})}});"),
    ("st.global.v2.{u8,u16,u32,u64}", "m v2", "StoreWeak<{0}, 2>({a}, {{{0}({b0}), {0}({b1})}});"),
    (
        "st.global.v4.{u8,u16,u32}",
        "m v4",
        "StoreWeak<{0}, 4>({a}, {{{0}({b0}), {0}({b1}), {0}({b2}), {0}({b3})}});",
    ),
    # Words and lines that others poll.
    ("ld.relaxed.sys.global.{u32,u64}", "r m", "{a} = LoadRelaxed_{0}({b});"),
    ("ld.acquire.sys.global.u64", "r m", "{a} = LoadAcquire_u64({b});"),
    ("st.relaxed.sys.global.{u32,u64}", "m r", "StoreRelaxed_{0}({a}, {b});"),
    ("st.release.sys.global.{u32,u64}", "m r", "StoreRelease_{0}({a}, {b});"),
    (
        "ld.relaxed.sys.global.v4.u32",
        "v4 m",
        "auto v = LoadLine({b}); {a0} = v[0]; {a1} = v[1]; {a2} = v[2]; {a3} = v[3];",
    ),
    (
        "st.relaxed.sys.global.v4.u32",
        "m v4",
        "StoreLine({a}, {{u32({b0}), u32({b1}), u32({b2}), u32({b3})}});",
    ),
    ("atom.global.sys.cas.b32", "r m r r", "{a} = CompareAndSwap({b}, {c}, {d});"),
    ("red.relaxed.gpu.global.add.u64", "m 1", "CountUp({a});"),
    ("fence.sc.sys", "", "FenceAll();"),
    # Threads.
    ("bar.sync", "0", "SyncBlock();"),
    ("bar.red.or.pred", "p 0 p", "{a} = SyncBlockOr({c});"),
    ("bar.warp.sync", "-1", "SyncWarp();"),
    ("vote.sync.any.pred", "p p r", "{a} = VoteAny({b}, {c});"),
    ("nanosleep.u32", "r", "Sleep();"),
    ("mov.u64", "r %globaltimer", "{a} = GlobalTimer();"),
    ("bra", "l", "goto {a};"),
    ("bra.uni", "l", "goto {a};"),
    ("ret", "", "return;"),
    ("trap", "", "Trap();"),
    # Bulk copies.
    ("mbarrier.init.shared::cta.b64", "m 1", "BarrierInit({a});"),
    ("fence.mbarrier_init.release.cluster", "", "FenceBarrierInit();"),
    ("fence.proxy.async.shared::cta", "", "FenceProxyAsyncShared();"),
    ("mbarrier.arrive.expect_tx.shared::cta.b64", "_ m r", "BarrierExpect({b}, {c});"),
    ("mbarrier.try_wait.parity.shared::cta.b64", "p m r", "{a} = BarrierTryWait({b}, {c});"),
    (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
        "m m r m",
        "BulkToShared({a}, {b}, {c}, {d});",
    ),
    ("cp.async.bulk.global.shared::cta.bulk_group", "m m r", "BulkToGlobal({a}, {b}, {c});"),
    ("cp.async.bulk.commit_group", "", "BulkCommit();"),
    ("cp.async.bulk.wait_group.read", "1", "BulkWaitRead();"),
    ("cp.async.bulk.wait_group", "0", "BulkWait();"),
    ("fence.proxy.async.global", "", "FenceProxyAsync();"),
    # Multicast memory.
    ("fence.proxy.alias", "", "FenceProxyAlias();"),
    (
        "multimem.st.relaxed.sys.global.v4.f32",
        "m v4",
        "MultimemStore({a}, {{u32({b0}), u32({b1}), u32({b2}), u32({b3})}});",
    ),
    (
        "multimem.ld_reduce.relaxed.sys.global.{add,min,max}.{u32,s32,u64,s64,f64}",
        "r m",
        "{a} = MultimemReduce<Multimem::{0}, {1}>({b});",
    ),
    (
        "multimem.ld_reduce.relaxed.sys.global.{and,or,xor}.b64",
        "r m",
        "{a} = MultimemReduce<Multimem::{0}_, u64>({b});",
    ),
    *(
        (
            f"multimem.ld_reduce.relaxed.sys.global.add{form}",
            "v4 m",
            f"auto v = {how}({{b}}); {{a0}} = v[0]; {{a1}} = v[1]; {{a2}} = v[2]; {{a3}} = v[3];",
        )
        for form, how in [
            (".v4.f32", "MultimemAddF32"),
            (".acc::f32.v4.f16x2", "MultimemAddF16"),
            (".acc::f32.v4.bf16x2", "MultimemAddBF16"),
        ]
    ),
]


@dataclasses.dataclass(frozen=True)
class Form:
    shapes: tuple[str, ...]
    statement: str


def _expand() -> dict[str, list[Form]]:
    forms: dict[str, list[Form]] = {}
    for opcode, shapes, statement in _TABLE:
        parts = re.split(r"\{([^}]*)\}", opcode)
        for chosen in itertools.product(*(part.split(",") for part in parts[1::2])):
            name = parts[0] + "".join(map(str.__add__, chosen, parts[2::2]))
            text = statement
            for i, choice in enumerate(chosen):
                # A weak access with a state space is of the type alone.
                text = text.replace(f"{{{i}}}", choice.rsplit(".", 1)[-1])
            forms.setdefault(name, []).append(Form(tuple(shapes.split()), text))
    return forms


FORMS = _expand()
