"""Mutexes of the engine are jaxring::Mutex, and `make tidy` reports what contradicts their annotations."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT

CLANG_TIDY = Path(sys.executable).with_name("clang-tidy")
BASE = ROOT / "ffi" / "base"
UNCHECKED = re.compile(r"std::(\w*mutex|lock_guard|unique_lock|scoped_lock|condition_variable)\b")

ACCOUNT = """
#include "base/mutex.h"
using namespace jaxring;
class Account {
 public:
  int Read();
  void Move();
 private:
  void AddLocked(int by) JAXRING_REQUIRES(mutex_) { balance_ += by; }
  Mutex mutex_ JAXRING_ACQUIRED_BEFORE(log_mutex_);
  Mutex log_mutex_;
  int balance_ JAXRING_GUARDED_BY(mutex_) = 0;
};
"""
RIGHT = """
int Account::Read() { MutexLock lock(mutex_); return balance_; }
void Account::Move() { MutexLock lock(mutex_); AddLocked(1); MutexLock log(log_mutex_); }
"""
WRONG = {
    "requires holding mutex 'mutex_'": "int Account::Read() { return balance_; }",
    "calling function 'AddLocked' requires": "void Account::Move() { AddLocked(1); }",
    "mutex 'mutex_' must be acquired before 'log_mutex_'": (
        "void Account::Move() { MutexLock log(log_mutex_); MutexLock lock(mutex_); AddLocked(1); }"
    ),
    "requires holding mutex 'mutex_' exclusively": (
        "void Account::Move() { RelockableMutexLock lock(mutex_); lock.Unlock(); balance_ = 0; }"
    ),
}


def tidy(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    source = folder / "account.cc"
    source.write_text(ACCOUNT + text)
    command = [str(CLANG_TIDY), "--quiet", f"--config-file={ROOT / '.clang-tidy'}", str(source)]
    return subprocess.run([*command, "--", "-std=c++20", f"-I{ROOT / 'ffi'}"], capture_output=True, text=True)


def test_what_holds_its_locks_passes(tmp_path: Path) -> None:
    done = tidy(tmp_path, RIGHT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("report", WRONG)
def test_what_lacks_a_lock_or_takes_two_in_the_wrong_order_is_an_error(report: str, tmp_path: Path) -> None:
    done = tidy(tmp_path, WRONG[report])
    assert done.returncode != 0
    assert "clang-diagnostic-thread-safety" in done.stdout, done.stdout + done.stderr
    assert report in done.stdout


def test_no_mutex_is_without_annotations() -> None:
    own = [path for path in (ROOT / "ffi").rglob("*") if path.suffix in (".cc", ".h", ".cu", ".cuh")]
    # Tests and the simulated GPU are not annotated.
    checked = [path for path in own if not {"tests", "sim"} & set(path.relative_to(ROOT / "ffi").parts)]
    assert BASE / "mutex.h" in checked
    wrong = [
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in checked
        if path.parent != BASE
        for found in UNCHECKED.finditer(path.read_text())
    ]
    assert not wrong, f"use jaxring::Mutex and what ffi/base/mutex.h has beside it: {wrong}"
