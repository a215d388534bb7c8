"""Which symbols of the C++ library the native module is bound to."""

from __future__ import annotations

import subprocess

from jaxring import _native


def test_waits_on_condition_variables_are_those_of_older_libraries():
    # objdump comes with the linker.
    symbols = subprocess.run(["objdump", "-T", _native.__file__], capture_output=True, text=True, check=True).stdout
    waits = [line for line in symbols.splitlines() if "condition_variable4wait" in line]
    assert waits
    assert not [line for line in waits if "GLIBCXX_3.4.30" in line], "a source lacks base/condition_variable.h"
