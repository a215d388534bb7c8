"""Prints what commands show of jobs that there are not, for test_widths.py: of values made by hand."""

from __future__ import annotations

import types

from jaxring._stragglers import Straggler
from jaxring.cli import doctor_job, tables, top
from jaxring.cli.doctor_job import Link
from jaxring.trace.live import LiveCall, Process, View

WHERE = "jaxring.all_reduce sum of float32[1000000] over 'data' at /home/someone/a/long/folder/train.py:1234"


def show_top() -> None:
    """A view of `jaxring top`."""
    why = "it computed for 30 ms longer than the others, in which it had no CPU for 1 ms."
    late = Straggler("process 1", WHERE, "compute", why, 30e3, 0.0, 20, 20, 12.0)
    of_it = Process("process 1", 4194304, 100, 50.0, 0.99, 1234567.0, 1234567.0, 1.0, WHERE, 123.4, 4, 1)
    way = "hier_halving_doubling/simple"
    call = LiveCall(WHERE, 4_000_000, 8, 8, way, 100, 12.34, "process 1", 50.0, 1234567.0, 1.0)
    view = View("some-host.example.com:54321", 2.0, (of_it,) * 3, (call,) * 2, (late,))
    for made in top._tables(view):
        tables.console().print(made)


def show_doctor_job() -> None:
    """What `jaxring doctor --job` says of two processes that do not reach each other."""
    what = "Locked memory is limited to 64 KiB: RDMA cannot register memory."
    mend = "Raise it (LimitMEMLOCK=infinity, docker run --ulimit memlock=-1), or give the container IPC_LOCK."
    finding = {"grave": True, "what": what, "cost": "", "mend": mend}
    seen = [{"host": f"host{p}", "findings": [finding]} for p in range(2)]
    fault = "192.0.2.17 port 41234: Connection refused; fd00::17 port 41234: not tried within 40 s"
    links = [Link(0, 1, "socket", "enp1s0f0np0", 9000, 0.0, fault), Link(1, 0, "socket", "eth0", 1500, 1.23, "")]
    differing = {"JAXRING_SOCKET_IFNAME": {"": [0], "eth0": [1]}}
    print("\n".join(doctor_job._lines(["host0", "host1"], seen, differing, links)))


SHOWN = types.MappingProxyType({"top": show_top, "doctor --job": show_doctor_job})
