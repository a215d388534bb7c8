"""What NVML knows of a machine's GPUs and /sys does not: compute capability, NVLinks, NVSwitches, NVLink-C2C.

By NVIDIA's own package, nvidia-ml-py (the module pynvml), where it is installed and finds a driver. NVML shows all GPUs
of the machine that the process may open, whatever CUDA_VISIBLE_DEVICES says.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from jaxring.topology.machine import Gpu, Machine

# In a virtual machine the other end may have no bus id. NCCL writes this one then, and takes it for an NVSwitch.
_HIDDEN = "fffffff:ffff:ff"


def completed(machine: Machine) -> Machine:
    """The machine with the details that NVML has of its GPUs, by their bus ids; the same one where NVML is not there.

    A GPU that NVML does not show, or cannot read, stays as it is, and all do with a package from before NVML 525.
    """
    if not machine.gpus:
        return machine
    try:
        import pynvml
    except ImportError:
        return machine
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, or none that answers
        return machine
    try:
        handles = dict(_handles(pynvml))
        known = {gpu.busid for gpu in machine.gpus}
        gpus = tuple(
            _detailed(pynvml, gpu, handles[gpu.busid], known) if gpu.busid in handles else gpu for gpu in machine.gpus
        )
    except (pynvml.NVMLError, AttributeError):
        return machine
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
    return dataclasses.replace(machine, gpus=gpus)


def busid(text: str | bytes) -> str:
    """A bus id as the kernel writes it: NVML has capitals, and eight digits of the domain ("00000000:C4:00.0").

    `_HIDDEN` for what is none.
    """
    lower = (text.decode("ascii", "replace") if isinstance(text, bytes) else text).lower()
    domain, colon, rest = lower.partition(":")
    try:
        return f"{int(domain, 16):04x}{colon}{rest}"
    except ValueError:
        return _HIDDEN


def _handles(nvml: Any) -> Iterator[tuple[str, Any]]:
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            yield busid(nvml.nvmlDeviceGetPciInfo(handle).busId), handle
        except nvml.NVMLError:  # one that is lost, or that this process may not open
            continue


def _detailed(nvml: Any, gpu: Gpu, handle: Any, known: Collection[str]) -> Gpu:
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except nvml.NVMLError:
        return gpu
    links = collections.Counter(_nvlinks(nvml, handle, known))
    return dataclasses.replace(gpu, sm=10 * major + minor, nvlinks=tuple(links.items()), c2c=_c2c(nvml, handle))


def _nvlinks(nvml: Any, handle: Any, known: Collection[str]) -> Iterator[str]:
    """The other end of each NVLink that is up. A GPU that is not among the known ones is no end for any data."""
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not _up(nvml, handle, link):
                continue
            end = busid(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
        except nvml.NVMLError:  # a GPU has fewer links than the most, and some have none
            continue
        if end in known or not _leads_to_gpu(nvml, handle, link):
            yield end


def _up(nvml: Any, handle: Any, link: int) -> bool:
    # Since Hopper by a field, as NCCL asks; the older call is there for older GPUs and drivers.
    state = _field(nvml, handle, nvml.NVML_FI_DEV_NVLINK_GET_STATE, link)
    if state is None:
        state = nvml.nvmlDeviceGetNvLinkState(handle, link)
    return bool(state == nvml.NVML_FEATURE_ENABLED)


def _leads_to_gpu(nvml: Any, handle: Any, link: int) -> bool:
    try:
        return bool(nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link) == nvml.NVML_NVLINK_DEVICE_TYPE_GPU)
    except nvml.NVMLError:
        return False


def _c2c(nvml: Any, handle: Any) -> float:
    """GB/s of all C2C links that are up; each says its own in MB/s."""
    sum_ = 0
    for link in range(_field(nvml, handle, nvml.NVML_FI_DEV_C2C_LINK_COUNT) or 0):
        if _field(nvml, handle, nvml.NVML_FI_DEV_C2C_LINK_GET_STATUS, link) == 1:
            sum_ += _field(nvml, handle, nvml.NVML_FI_DEV_C2C_LINK_GET_MAX_BW, link) or 0
    return sum_ / 1000


def _field(nvml: Any, handle: Any, field: int, scope: int = 0) -> int | None:
    """A number that NVML keeps by field and scope; None where this GPU has none."""
    try:
        (value,) = nvml.nvmlDeviceGetFieldValues(handle, [(field, scope)])
    except nvml.NVMLError:
        return None
    return int(value.value.uiVal) if value.nvmlReturn == nvml.NVML_SUCCESS else None
