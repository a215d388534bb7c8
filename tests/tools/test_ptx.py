"""The translator of PTX knows what it translates and refuses the rest, with the line. Needs no nvcc."""

from pathlib import Path

import pytest

from tools.ptx.emit import write
from tools.ptx.mutations import KINDS, MUTATIONS, Mutation
from tools.ptx.parse import RefusedError, parse

KERNEL = """
.version 9.0
.target sm_90
.address_size 64
.entry _ZN4cuda5AddUpEPj(
	.param .u64 AddUp_param_0
)
{
	.reg .pred %p<2>;
	.reg .b32 %r<4>;
	.reg .b64 %rd<2>;
	ld.param.u64 	%rd1, [AddUp_param_0];
	ld.global.u32 	%r1, [%rd1+-4];
	setp.eq.s32 	%p1, %r1, -1;
	@!%p1 bra 	$L__end;
	add.s32 	%r2, %r1, 7;
	st.release.sys.global.u32 [%rd1], %r2;
$L__end:
	ret;
}
"""


def translate(text: str, *mutations: Mutation) -> str:
    texts, _ = write(parse(Path("kernel.ptx"), text), mutations)
    return texts["Ptx_AddUpEPj"]


def test_translates() -> None:
    text = translate(KERNEL)
    assert "Rr1 = LoadWeak<u32, 1>(Rrd1 + 0xfffffffffffffffcu)[0];" in text
    assert "if (!Rp1) { goto L__end; }" in text
    assert "StoreRelease_u32(Rrd1, Rr2);" in text


@pytest.mark.parametrize(
    ("instruction", "becomes"),
    [
        ("trap;", "Trap();"),
        ("red.relaxed.gpu.global.add.u64 [%rd1], 1;", "CountUp(Rrd1);"),
        ("ld.param.s32 %r2, [AddUp_param_0+4];", "Rr2 = s32_(LoadParam<s32>(param0 + 0x4u));"),
        ("@%p1 fence.sc.sys;", "if (Rp1) { FenceAll(); }"),
        (
            "st.relaxed.sys.global.v4.u32 [%rd1+16], {%r1, 0, %r2, -1};",
            "StoreLine(Rrd1 + 0x10u, {u32(Rr1), u32(0x0u), u32(Rr2), u32(0xffffffffffffffffu)});",
        ),
        (
            "{.reg .u64 word; ld.acquire.sys.global.u64 word, [%rd1];}",
            "Rscope1_word = LoadAcquire_u64(Rrd1);",
        ),
        ("bar.red.or.pred %p1, 0, !%p0;", "Rp1 = SyncBlockOr(!Rp0);"),
        ("mov.b32 %r2, 0f3F800000;", "Rr2 = 0x3F800000u;"),
    ],
)
def test_forms(instruction: str, becomes: str) -> None:
    assert becomes in translate(KERNEL.replace("add.s32 	%r2, %r1, 7;", instruction))


def test_writes_mutations_beside_what_they_change() -> None:
    relaxed = Mutation("order", "", "Ptx_AddUp", r"st\.release\.sys(\S+) (.*)", r"st.relaxed.sys\2 \3")
    absent = Mutation("dropped", "", "Ptx_AddUp", r"ld\.global\.u32 .*")
    other = Mutation("dropped", "", "Ptx_Other", r"add\.s32 .*")
    text = translate(KERNEL, relaxed, absent, other)
    assert "if (broken == 0) { StoreRelaxed_u32(Rrd1, Rr2); } else { StoreRelease_u32(Rrd1, Rr2); }" in text
    assert "if (broken == 1) {  } else { Rr1 = LoadWeak" in text
    assert "broken == 2" not in text


def test_a_merged_load_is_done_once_for_an_address() -> None:
    text = translate(KERNEL, Mutation("merged", "", "Ptx_AddUp", r"ld\.global\.u32 .*", merged=True))
    assert "u64 merged0 = 0;" in text
    assert "if (merged0 != (Rrd1 + 0xfffffffffffffffcu)) { merged0 = Rrd1 + 0xfffffffffffffffcu; Rr1 = " in text


def test_each_second_instruction() -> None:
    twice = KERNEL.replace("	ret;", "st.release.sys.global.u32 [%rd1], %r1;\n	ret;")
    text = translate(twice, Mutation("dropped", "", "Ptx_AddUp", r"st\.release.*", second=True))
    assert "  StoreRelease_u32(Rrd1, Rr2);\n" in text
    assert "if (broken == 0) {  } else { StoreRelease_u32(Rrd1, Rr1); }" in text


def test_a_mutation_that_has_no_translation_is_refused() -> None:
    with pytest.raises(RefusedError, match="no translation"):
        translate(
            KERNEL, Mutation("order", "", "Ptx_AddUp", r"st\.release.*", "st.release.gpu.global.u32 [%rd1], %r2;")
        )


def test_the_table_of_mutations() -> None:
    assert {each.kind for each in MUTATIONS} | {"refused"} == set(KINDS)
    assert len({each.what for each in MUTATIONS}) == len(MUTATIONS)


@pytest.mark.parametrize(
    ("known", "unknown"),
    [
        ("add.s32 ", "shfl.sync.add "),  # an instruction
        ("st.release.sys.", "st.release.gpu."),  # another scope
        ("st.release.sys.global.u32 [%rd1], %r2;", "st.release.sys.global.u32 [%rd1], {%r1, %r2};"),  # a vector
        ("[%rd1], %r2", "[%rd9], %r2"),  # a register that there is not
    ],
)
def test_refuses_what_it_does_not_know(known: str, unknown: str) -> None:
    assert known in KERNEL
    text = KERNEL.replace(known, unknown)
    line = next(i for i, each in enumerate(text.splitlines(), 1) if unknown.split(";")[0] in each)
    with pytest.raises(RefusedError, match=rf"^kernel\.ptx:{line}: .* no translation .*: \S+ "):
        translate(text)


def test_refuses_functions() -> None:
    with pytest.raises(RefusedError, match=r"^kernel.ptx:21: not translated: \.func"):
        parse(Path("kernel.ptx"), KERNEL + ".func Other() { ret; }\n")
