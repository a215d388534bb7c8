"""A fork on a host of network namespaces finds what the host's own command finds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import starting
from tests.hosts.hosts_netns import hosts

SEEN = """
import os, pathlib, socket, sys
print(socket.gethostname(), socket.gethostbyname("host1"), sorted(name for _, name in socket.if_nameindex()))
print(sorted(os.listdir("/sys/class/net")), pathlib.Path("/etc/hosts").read_text(), sys.argv, os.getcwd())
print(os.path.ismount("/etc/hosts"), [os.readlink(f"/proc/self/ns/{name}") for name in ("net", "ipc", "pid", "user")])
parent = os.getppid()
print([os.readlink(f"/proc/self/ns/{name}") != os.readlink(f"/proc/{parent}/ns/{name}") for name in ("mnt", "uts")])
"""


@pytest.mark.netns
def test_it_is_on_the_host(tmp_path):
    argv = [sys.executable, "-X", "faulthandler", "-c", SEEN, "an argument"]
    ends = []
    with hosts(2) as made:
        command = made.command(1, tmp_path, argv)
        host = starting.Host(made.names[1], "host1", str(tmp_path / "hosts"), argv)
        for popen, more in ((starting.Popen, {"host": host}), (subprocess.Popen, {})):
            with popen(command, stdout=subprocess.PIPE, text=True, **more) as process:
                ends.append((process.communicate(timeout=100)[0], process.returncode))
            assert getattr(process, "forked", False) == bool(more)
    assert ends[0] == ends[1]
    assert "['jxa0', 'lo']" in ends[0][0]
    assert ends[0][0].startswith("host1 10.213.40.2 ")
    assert ends[0][0].endswith("[True, True]\n")
