"""Hosts as network namespaces that are joined by veth over a bridge; each has a hostname of its own."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jaxring.bench import hosts as bench_hosts
from jaxring.errors import JaxringError
from tests import starting
from tests.stress.stress_jobs import environment, member

if TYPE_CHECKING:
    from tests.stress.stress_jobs import Job


class Hosts(bench_hosts.Hosts):
    """The bench's hosts, on which jobs are started as tests start them."""

    def start(
        self,
        job: Job,
        arguments: list[str],
        placement: list[int],
        devices: int = 1,
        port: int = 7701,
        **extra: str,
    ) -> list[subprocess.Popen[bytes]]:
        """Starts a job whose process p runs on host ``placement[p]``; the coordinator is process 0."""
        env = environment(devices, **{"JAXRING_DEBUG": "INFO", **extra})
        coordinator = f"{self.address(placement[0])}:{port}"
        python = [sys.executable, "-X", "faulthandler", *arguments]
        started = []
        for process, host in enumerate(placement):
            command = self.command(host, job.folder, python)
            at = starting.Host(self.names[host], f"host{host}", str(job.folder / "hosts"), python)
            started.append(job.start(command, member(env, coordinator, len(placement), process), at))
        return started

    def drop_connections_to(self, host: int) -> None:
        """A firewall there that says nothing: who wants to connect to it gets no answer. Skips without nft."""
        if shutil.which("nft") is None:
            pytest.skip("there is no nft to make a firewall with")
        rules = (
            "add table inet filter",
            "add chain inet filter input { type filter hook input priority 0 ; }",
            f"add rule inet filter input iifname {self.device()} tcp flags & (syn | ack) == syn drop",
        )
        command = ["ip", "netns", "exec", self.names[host], "nft", "; ".join(rules)]
        subprocess.run(command, check=True, capture_output=True)

    def slow(self, host: int, targets: dict[int, str], rest: str) -> None:
        """What this host sends to each target goes at that rate, as `tc` writes it, and at ``rest`` to all others."""

        def tc(what: str, *arguments: str) -> None:
            command = ["tc", "-n", self.names[host], what, "add", "dev", self.device(), *arguments]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode != 0:
                pytest.skip(f"tc cannot shape by destination: {done.stderr.strip()}")

        tc("qdisc", "root", "handle", "1:", "htb", "default", "1")
        tc("class", "parent", "1:", "classid", "1:1", "htb", "rate", rest)
        for target, rate in targets.items():
            at = f"1:{target + 2}"
            tc("class", "parent", "1:", "classid", at, "htb", "rate", rate)
            match = ["protocol", "ip", "u32", "match", "ip", "dst", self.address(target), "flowid", at]
            tc("filter", "parent", "1:", *match)

    def cut(self, host: int) -> None:
        """Pulls a host's cable, as it looks from both of its ends."""
        bench_hosts.ip("-n", self.names[host], "link", "set", self.device(), "down")

    def mend(self, host: int) -> None:
        """Plugs it in again."""
        bench_hosts.ip("-n", self.names[host], "link", "set", self.device(), "up")


@contextlib.contextmanager
def hosts(count: int, networks: int = 1):
    """Hosts that are gone afterwards. Skips where they cannot be made."""
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(Hosts(count, networks))
        except JaxringError as error:
            pytest.skip(str(error))
        yield made
