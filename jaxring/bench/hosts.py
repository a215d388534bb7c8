"""Hosts on one machine: network namespaces joined by bridges, each with a hostname, their links shaped to a rate.

    jaxring bench all_reduce -n 4x1 --hosts 4 --rate 1gbit --peers gloo,mpi

needs root and iproute2. If iperf3 is installed, it measures a link's rate. `tc tbf` shapes what every host sends.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import uuid
from typing import TYPE_CHECKING, Self

from jaxring.errors import JaxringError

if TYPE_CHECKING:
    from collections.abc import Sequence

# Runs a command with the hostname $0 and the file $1 as /etc/hosts, in the mount namespace that `ip netns exec` makes.
_BEGIN = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'
_UNITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
# The burst that tbf lets through at once: short, so that it keeps the rate, but at least one large segment.
_BUCKET_S = 0.001
_SEGMENT_BYTES = 128 * 1024
_IPERF_S, _IPERF_LIMIT_S = 3, 30


def burst_bytes(rate: str) -> int:
    """What a link that is shaped to this rate and was idle passes at once."""
    return max(_SEGMENT_BYTES, round(_BUCKET_S * bytes_per_second(rate)))


def ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run `ip`. Raises JaxringError with its error text if it fails and ``check`` is set."""
    done = subprocess.run(["ip", *arguments], check=False, capture_output=True, text=True)
    if check and done.returncode != 0:
        raise JaxringError(f"`ip {' '.join(arguments)}` failed: {done.stderr.strip()}")
    return done


class Hosts:
    """``count`` hosts with an interface for each of ``networks``: jxa0 in 10.213.40.0/24, jxb0 in 10.213.41.0/24.

    A context manager. ``rate`` is that of every interface, as `tc` writes it ("1gbit"), or "" for no shaping.
    ``congestion`` is TCP's congestion control, or "" for this host's. ``tag`` is part of the namespaces' names. Raises
    JaxringError if they cannot be made.
    """

    def __init__(self, count: int, networks: int = 1, rate: str = "", congestion: str = "") -> None:
        if count < 1 or not 1 <= networks <= 26:
            raise JaxringError(f"{count} hosts with {networks} networks cannot be made: give 1 or more, with 1 to 26.")
        if rate:
            bytes_per_second(rate)
        self.tag = uuid.uuid4().hex[:6]
        self.names = [f"jx{self.tag}h{i}" for i in range(count)]
        self._networks, self._rate, self._congestion = networks, rate, congestion
        self._switch = f"jx{self.tag}sw"
        self._made: list[str] = []

    def __enter__(self) -> Self:
        # Debian has `tc` in /usr/sbin, which is not in every PATH.
        missing = [tool for tool in ("ip", "unshare", *(["tc"] if self._rate else [])) if shutil.which(tool) is None]
        if missing or os.geteuid() != 0:
            where = f" PATH has no {', '.join(missing)}." if missing else ""
            raise JaxringError(f"Hosts as network namespaces need root, iproute2 and util-linux.{where}")
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            ip("netns", "delete", name, check=False)

    def _make(self) -> None:
        # The bridges have a namespace, too, so that its deletion removes them and they do not appear among this host's.
        for name in [self._switch, *self.names]:
            ip("netns", "add", name)
            self._made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
            if self._congestion:
                ip("netns", "exec", name, "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={self._congestion}")
        for network in range(self._networks):
            bridge, device = f"br{network}", self.device(network)
            ip("-n", self._switch, "link", "add", bridge, "type", "bridge")
            ip("-n", self._switch, "link", "set", bridge, "up")
            for host, name in enumerate(self.names):
                port = self._port(host, network)
                veth = ("type", "veth", "peer", "name", port, "netns", self._switch)
                ip("link", "add", device, "netns", name, *veth)
                ip("-n", self._switch, "link", "set", port, "master", bridge, "up")
                ip("-n", name, "address", "add", f"{self.address(host, network)}/24", "dev", device)
                ip("-n", name, "link", "set", device, "up")
                if self._rate:
                    self._shape(name, device, self._rate, "add")

    @property
    def bucket_s(self) -> float:
        """Seconds of traffic that a link which was idle passes at the machine's speed, before the rate applies."""
        return burst_bytes(self._rate) / bytes_per_second(self._rate) if self._rate else 0.0

    def _shape(self, name: str, device: str, rate: str, how: str) -> None:
        shape = ["tbf", "rate", rate, "burst", str(burst_bytes(rate)), "latency", "50ms"]
        done = subprocess.run(
            ["tc", "-n", name, "qdisc", how, "dev", device, "root", *shape],
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise JaxringError(f"`tc` cannot shape a link to {rate}: {done.stderr.strip()}")

    def sever(self, host: int, network: int) -> None:
        """A switch that fails: nothing passes between the host and that network, and no interface goes down."""
        ip("-n", self._switch, "link", "set", self._port(host, network), "nomaster")

    def rejoin(self, host: int, network: int) -> None:
        """Ends `sever`."""
        ip("-n", self._switch, "link", "set", self._port(host, network), "master", f"br{network}")

    def throttle(self, host: int, network: int, rate: str) -> None:
        """Has what the host sends to that network go at another rate than it was shaped to. Raises JaxringError."""
        if not self._rate:
            raise JaxringError("Only a link that was made with a rate can be throttled.")
        self._shape(self.names[host], self.device(network), rate, "change")

    @staticmethod
    def _port(host: int, network: int) -> str:
        return f"p{network}h{host}"

    @staticmethod
    def device(network: int = 0) -> str:
        """The interface to a network, the same on every host."""
        return f"jx{chr(ord('a') + network)}0"

    @staticmethod
    def address(host: int, network: int = 0) -> str:
        """A host's address."""
        return f"10.213.{40 + network}.{host + 1}"

    def command(self, host: int, folder: pathlib.Path, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` on that host (host0, host1, ...). Writes a file of all names into `folder`."""
        names = folder / "hosts"
        if not names.exists():
            lines = ["127.0.0.1 localhost", *(f"{self.address(i)} host{i}" for i in range(len(self.names)))]
            names.write_text("\n".join(lines) + "\n")
        begin = ["ip", "netns", "exec", self.names[host], "unshare", "--uts", "sh", "-c", _BEGIN, f"host{host}"]
        return [*begin, str(names), *argv]

    def mpirun(self, processes: int, folder: pathlib.Path) -> list[str]:
        """The start of an mpirun command, for host 0, with ``processes`` in equal numbers on the hosts."""
        each = processes // len(self.names)
        agent = folder / "agent"
        agent.write_text(
            "#!/bin/sh\n"
            "# Starts Open MPI's daemon on a host: $1 is its name, the rest a command.\n"
            'host=$1; shift; command="$*"\n'
            f'exec ip netns exec "jx{self.tag}h${{host#host}}" unshare --uts sh -c \'{_BEGIN}\' "$host" '
            f'{folder / "hosts"} sh -c "$command"\n'
        )
        agent.chmod(0o700)
        interface = self.device()
        options = ["plm_rsh_agent", str(agent), "btl_tcp_if_include", interface, "oob_tcp_if_include", interface]
        mca = [word for pair in zip(options[::2], options[1::2], strict=True) for word in ("--mca", *pair)]
        where = ",".join(f"host{i}:{each}" for i in range(len(self.names)))
        return ["mpirun", "--allow-run-as-root", *mca, "-H", where, "--bind-to", "none", "-n", str(processes)]

    def describe(self) -> str:
        """The links between the hosts, and the rate that iperf3 gets over one."""
        shaped = f" of {self._rate}" if self._rate else ""
        what = f"{len(self.names)} hosts, {self._networks} link(s){shaped} each"
        if len(self.names) < 2 or shutil.which("iperf3") is None:
            return what + "; not measured without iperf3"
        with tempfile.TemporaryDirectory(prefix="jaxring-bench-") as folder:
            gbits, control = self.goodput(pathlib.Path(folder))
        return f"{what}; iperf3 gets {gbits:.3f} Gbit/s = {gbits / 8:.4f} GB/s over one, by {control}"

    def goodput(self, folder: pathlib.Path) -> tuple[float, str]:
        """Gbit/s that iperf3 gets from host 0 to host 1 over the first network, and the congestion control in use.

        Raises JaxringError where there is no iperf3.
        """
        if shutil.which("iperf3") is None:
            raise JaxringError("A link's rate cannot be measured: install iperf3.")
        server = subprocess.Popen(
            self.command(1, folder, ["iperf3", "-s", "-1"]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + _IPERF_LIMIT_S
            client = self.command(0, folder, ["iperf3", "-J", "-t", str(_IPERF_S), "-c", self.address(1)])
            while True:
                done = subprocess.run(client, check=False, capture_output=True, text=True, timeout=_IPERF_LIMIT_S)
                # With -J iperf3 exits with 0 even if it has not reached the server.
                said = json.loads(done.stdout)["end"] if done.returncode == 0 else {}
                if "sum_received" in said:
                    return said["sum_received"]["bits_per_second"] / 1e9, said.get("sender_tcp_congestion", "")
                if time.monotonic() > deadline:
                    raise JaxringError(f"iperf3 failed: {done.stdout[-500:]}{done.stderr[-500:]}")
                time.sleep(0.1)  # the server may not listen yet
        finally:
            server.kill()
            server.wait()


def bytes_per_second(rate: str) -> float:
    """Bytes per second of a rate as `tc` writes it, such as "1gbit". JaxringError where it is none."""
    if not (found := re.fullmatch(r"([0-9]{1,6})(kbit|mbit|gbit)", rate)) or not int(found[1]):
        raise JaxringError(f"{rate!r} is not a rate; rates are like 100mbit or 1gbit.")
    number, unit = found.groups()
    return int(number) * _UNITS[unit] / 8
