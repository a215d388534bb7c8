"""Two versions of jaxring take turns: here one environment is both."""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks import versions

FEW = ["--bytes", "8", "--turns", "2", "--seconds", "0.01"]


@pytest.mark.multiprocess
@pytest.mark.slow
def test_two_versions_take_turns_and_are_compared(capsys):
    assert versions.main(["--old", sys.prefix, "--new", sys.executable, *FEW]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(": ")[0] for line in lines[:2]] == ["old", "new"]
    for kind, begin in (("program", 2), ("communicator", 6)):
        assert lines[begin].startswith(f"{kind}, all_reduce of 8")
        for line, name in zip(lines[begin + 1 : begin + 4], ("old", "new", "new / old"), strict=True):
            found = re.fullmatch(rf"  {name} (\S+) \(quartiles (\S+) \.\. (\S+)\)( us)?", line)
            assert found, line
            assert 0 < float(found[2]) <= float(found[1]) <= float(found[3]), line
    assert len(lines) == 10


def test_what_is_no_environment_or_has_no_jaxring_is_named(capsys, tmp_path):
    assert versions.main(["--old", str(tmp_path), "--new", sys.prefix, *FEW]) == 1
    assert f"There is no Python at {tmp_path}/bin/python" in capsys.readouterr().err
    none = tmp_path / "python"
    none.write_text("#!/bin/sh\necho no such module >&2\nexit 1\n")
    none.chmod(0o755)
    assert versions.main(["--old", str(none), "--new", str(none), "-n", "1", *FEW]) == 1
    err = capsys.readouterr().err
    assert "Process 0 of the job on --old has ended. It said:\nno such module" in err
