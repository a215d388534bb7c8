"""The command line: what cannot be is a usage error that names what was meant."""

from __future__ import annotations

import pytest

from jaxring.cli import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bench", "allreduce"], "there is no collective 'allreduce': did you mean all_reduce? There are all_reduce, "),
        (["bench", "all_reduce", "-o", "avg"], "there is no operation 'avg': did you mean mean? There are sum, mean"),
        (["bench", "all_reduce", "-d", "float13"], "there is no dtype 'float13': did you mean float32?"),
        (["bench", "all_reduce", "-d", "bf16"], "there is no dtype 'bf16': did you mean bfloat16?"),
        (["bench", "all_reduce", "-d", "Double"], "there is no dtype 'Double': did you mean float64?"),
        (["bench", "all_reduce", "-d", "?"], "there is no dtype '?': there are bool, int8, "),
        (["bench", "all_reduce", "-b", "1Q"], "argument -b: '1Q' is no size in bytes: write 4, 64K, 1M or 2G"),
        (["bench", "all_reduce", "--env", "x"], "argument --env: 'x' is not NAME=VALUE"),
        (["bench", "all_reduce", "-w", "0"], "argument -w: '0' is no whole number from 1"),
        (["bench", "all_reduce", "-n", "8"], "argument -n: '8' is not PROCESSESxDEVICES: write 4x2"),
        (["explain", "all_reduce", "-b", "1Q"], "argument -b: '1Q' is no size in bytes: write 4, 64K, 1M or 2G"),
        (["explain", "all_reduce", "-d", "float7"], "there is no dtype 'float7'"),
        (["explain", "allgather"], "there is no collective 'allgather': did you mean all_gather?"),
        (["explain", "all_reduce", "--protocol", "LL"], "there is no protocol 'LL': did you mean ll?"),
        (["explain", "all_reduce", "--algorithm", "rings"], "there is no algorithm 'rings': did you mean ring?"),
    ],
)
def test_usage_errors(capsys, arguments, says):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert says in capsys.readouterr().err
