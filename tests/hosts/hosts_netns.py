"""Hosts as network namespaces that are joined by veth over a bridge; each has a hostname of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING

import pytest
from stress_jobs import environment, member

if TYPE_CHECKING:
    import subprocess as processes

    from stress_jobs import Job


BEGIN = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'


def ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)


class Hosts:
    """`count` namespaces, each with an interface for every network: jxa0 in 10.213.40.0/24, jxb0 in 10.213.41.0/24."""

    def __init__(self, count: int, networks: int) -> None:
        self.tag = uuid.uuid4().hex[:6]
        self.names = [f"jx{self.tag}h{i}" for i in range(count)]
        self._switch = f"jx{self.tag}sw"
        self._networks = networks
        self._made: list[str] = []

    def make(self) -> None:
        # The bridges are in a namespace too, so that one deletion removes everything and the host sees nothing.
        for name in [self._switch, *self.names]:
            if ip("netns", "add", name, check=False).returncode != 0:
                pytest.skip("network namespaces cannot be made here")
            self._made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        for network in range(self._networks):
            bridge, device = f"br{network}", f"jx{'ab'[network]}0"
            if ip("-n", self._switch, "link", "add", bridge, "type", "bridge", check=False).returncode != 0:
                pytest.skip("bridges cannot be made here")
            ip("-n", self._switch, "link", "set", bridge, "up")
            for host, name in enumerate(self.names):
                port = f"p{network}h{host}"
                veth = ("type", "veth", "peer", "name", port, "netns", self._switch)
                ip("link", "add", device, "netns", name, *veth)
                ip("-n", self._switch, "link", "set", port, "master", bridge, "up")
                ip("-n", name, "address", "add", f"{self.address(host, network)}/24", "dev", device)
                ip("-n", name, "link", "set", device, "up")

    def remove(self) -> None:
        for name in self._made:
            ip("netns", "delete", name, check=False)

    @staticmethod
    def address(host: int, network: int = 0) -> str:
        return f"10.213.{40 + network}.{host + 1}"

    def start(
        self,
        job: Job,
        arguments: list[str],
        placement: list[int],
        devices: int = 1,
        port: int = 7701,
        **extra: str,
    ) -> list[processes.Popen[bytes]]:
        """Starts a job whose process p runs on host ``placement[p]``; the coordinator is process 0."""
        env = environment(devices, **{"JAXRING_DEBUG": "INFO", **extra})
        coordinator = f"{self.address(placement[0])}:{port}"
        # Gloo looks its own hostname up. `ip netns exec` gives a mount namespace, so /etc/hosts can be another there.
        names = job.folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{self.address(i)} host{i}" for i in range(len(self.names)))]
        names.write_text("\n".join(lines) + "\n")
        python = [sys.executable, "-X", "faulthandler", *arguments]
        started = []
        for process, host in enumerate(placement):
            command = ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", BEGIN, f"host{host}"]
            command += [str(names), *python]
            started.append(job.start(command, member(env, coordinator, len(placement), process)))
        return started


@contextlib.contextmanager
def hosts(count: int, networks: int = 1):
    """Hosts that are gone afterwards. Skips where they cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("needs root, iproute2 and util-linux")
    made = Hosts(count, networks)
    try:
        made.make()
        yield made
    finally:
        made.remove()
