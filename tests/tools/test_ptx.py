"""The translator of PTX knows what it translates and refuses the rest, with the line. Needs no nvcc."""

from pathlib import Path

import pytest

from tools.ptx.emit import write
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


def translate(text: str) -> str:
    texts, _ = write(parse(Path("kernel.ptx"), text))
    return texts["Ptx_AddUpEPj"]


def test_translates() -> None:
    text = translate(KERNEL)
    assert "Rr1 = LoadWeak<u32, 1>(Rrd1 + 0xfffffffffffffffcu)[0];" in text
    assert "if (!Rp1) { goto L__end; }" in text
    assert "StoreRelease_u32(Rrd1, Rr2);" in text


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
