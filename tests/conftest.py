"""Eight CPU devices for the tests that use JAX in pytest's own process; set before JAX starts its backend."""

import collections
import itertools
import os
import signal
import zlib

from tests import ROOT
from tests.compiling import QUICK

DEVICES = 8

# With few threads, jaxlib's own pool can run out while launches wait for each other.
if int(os.environ.get("PJRT_NPROC") or 0) < 8 * DEVICES:
    os.environ["PJRT_NPROC"] = str(8 * DEVICES)

# A hang of the engine ends well before pytest's own timeout, which cannot interrupt native code.
os.environ.setdefault("JAXRING_TIMEOUT", "60")

# Choices do not depend on what `jaxring tune` has measured on this machine.
os.environ["XDG_CACHE_HOME"] = str(ROOT / "build" / "tests" / "cache")

# Read when JAX starts its backend, here and in the processes that tests start.
os.environ.setdefault("XLA_FLAGS", QUICK)

# Tests that a shell has started in the background ignore SIGINT, and so would the processes that they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

import jax  # noqa: E402
import pytest  # noqa: E402

# Workers that tests start by their files import the package `tests`, too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

from tests.leftovers import nothing_left  # noqa: E402, F401

# Not by the environment, which processes that tests start would inherit.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", DEVICES)


# How many cases of each test that is sampled have been collected.
_cases = collections.Counter()

# Files, folders and tests that run with one version of Python and jax only: see the Makefile.
_ONCE = tuple(
    f"tests/{each}{end}"
    for each in os.environ.get("TEST_ONCE", "").split()
    for end in ([""] if "::" in each else ["/", "::"])
)

# Hardware, and files and programs of others, that no test machine can be given by an installation.
MAY_SKIP = ("gpu", "rdma", "real_machines", "loggopsim")


def pytest_addoption(parser):
    parser.addoption(
        "--no-skips",
        action="store_true",
        help=f"count a skipped test as failed, unless it is marked with one of: {', '.join(MAY_SKIP)}",
    )
    parser.addoption("--slow-share", metavar="K/N", help="of the slow tests, the K-th of N parts only, K from 0")


def pytest_generate_tests(metafunc):
    """A sample has every value of every parameter, where it has as many cases as the parameter has values.

    Parameters of fixtures are not counted.
    """
    sampled = metafunc.definition.get_closest_marker("sampled")
    if sampled is not None:
        test, step = metafunc.definition.nodeid, sampled.args[0]
        marks = metafunc.definition.iter_markers("parametrize")
        sizes = [len(mark.kwargs["argvalues"] if "argvalues" in mark.kwargs else mark.args[1]) for mark in marks]
        taken = list(itertools.product(*map(range, sizes)))[::step]
        for each, size in enumerate(sizes):
            found = len({case[each] for case in taken})
            assert found == min(size, len(taken)), f"{test}: sampled({step}) has {found} of a parameter's {size} values"


def pytest_collection_modifyitems(config, items):
    """Leaves out the slow tests that are not in the share: which share a test is in is decided by its name."""
    share = config.getoption("--slow-share")
    if share is None:
        return
    part, parts = map(int, share.split("/"))
    others = [
        item
        for item in items
        if item.get_closest_marker("slow") and zlib.crc32(item.nodeid.encode()) % parts != part % parts
    ]
    config.hook.pytest_deselected(items=others)
    out = set(others)
    items[:] = [item for item in items if item not in out]


def pytest_itemcollected(item):
    """Of the cases of a test that is marked `sampled(n)`, all but each n-th are slow; the first one is not.

    Those that are slow, and not of a test that runs with one version only, are `repeated`, too.
    """
    sampled = item.get_closest_marker("sampled")
    if sampled is not None:
        test = item.nodeid.partition("[")[0]
        if _cases[test] % sampled.args[0]:
            item.add_marker("slow")
            if not f"{test}::".startswith(_ONCE):
                item.add_marker("repeated")
        _cases[test] += 1


def _fail_if_skipped(report):
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"--no-skips: {report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    report = yield
    strict = item.config.getoption("--no-skips") and not any(item.get_closest_marker(name) for name in MAY_SKIP)
    return _fail_if_skipped(report) if strict else report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return _fail_if_skipped(report) if collector.config.getoption("--no-skips") else report
