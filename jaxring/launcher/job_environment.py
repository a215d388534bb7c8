"""The environment variables by which a process finds its part in a job."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORCED_DEVICES = re.compile(r"--xla_force_host_platform_device_count=([0-9]+)")
_BIND = "JAX_COORDINATOR_BIND_ADDRESS"


def environment(
    base: Mapping[str, str], address: str, processes: int, process: int, devices: int | None
) -> dict[str, str]:
    """The environment of process `process`: `base` and what makes it part of the job whose coordinator is `address`.

    `devices` is the number of CPU devices, None for what `base` says.
    """
    env = dict(base)
    # By default JAX listens on all interfaces, where any program can write to its store. A host's name is left to it:
    # on the host itself that often means loopback.
    if _is_number(address.rpartition(":")[0]):
        env[_BIND] = address
    env |= {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": str(processes),
        "JAX_PROCESS_ID": str(process),
    }
    env.setdefault("JAX_PLATFORMS", "cpu")
    if devices is not None:
        # This overrules a count in XLA_FLAGS, which so stay as they are.
        env["JAX_NUM_CPU_DEVICES"] = str(devices)
    else:
        forced = _FORCED_DEVICES.findall(env.get("XLA_FLAGS", ""))
        counts = [env.get("JAX_NUM_CPU_DEVICES", ""), *forced[-1:]]
        devices = max((int(count) for count in counts if count.isdecimal()), default=1)
    # A launch in flight holds a thread of jaxlib's own pool for each device and waits for others that need threads too:
    # a pool with fewer than (dispatching threads + 1) x devices hangs, with lax.psum as well.
    threads = max(8 * devices, os.cpu_count() or 1)
    if not (env.get("PJRT_NPROC", "").isdecimal() and int(env["PJRT_NPROC"]) >= 2 * devices):
        env["PJRT_NPROC"] = str(threads)
    return env


def bind_address(coordinator: str, environ: Mapping[str, str]) -> str | None:
    """Where process 0 listens when a process's job is replaced by one with this coordinator; None leaves it to JAX.

    JAX would read the variable of ``environ``, which has the port of the job before.
    """
    before, (name, _, port) = environ.get(_BIND), coordinator.rpartition(":")
    if not before:
        return None
    host = before.rpartition(":")[0]
    if host != environ.get("JAX_COORDINATOR_ADDRESS", "").rpartition(":")[0]:
        return f"{host}:{port}"
    return coordinator if _is_number(name) else f"[::]:{port}"


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
