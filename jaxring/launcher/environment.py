"""The environment variables by which a process finds its part in a job."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORCED_DEVICES = re.compile(r"--xla_force_host_platform_device_count=([0-9]+)")


def environment(
    base: Mapping[str, str], address: str, processes: int, process: int, devices: int | None
) -> dict[str, str]:
    """The environment of process `process`: `base` and what makes it part of the job whose coordinator is `address`.

    `devices` is the number of CPU devices, None for what `base` says.
    """
    env = dict(base)
    if _is_number(address.rpartition(":")[0]):
        # By default JAX listens on all interfaces, where any program can write to its store. A host's name is left to
        # it: on the host itself that often means loopback.
        env["JAX_COORDINATOR_BIND_ADDRESS"] = address
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


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
