"""A module that answers as pynvml does (nvidia-ml-py), for machines that are not here."""

from __future__ import annotations

import dataclasses
import types
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class NVMLError(Exception):
    """What every call raises that the library refuses."""


@dataclasses.dataclass
class FakeGpu:
    """``ends``: for each NVLink the bus id at its other end and whether it is up, as NVML numbers them.

    ``c2c``: for each C2C link whether it is up and its MB/s. ``fields``: whether the driver keeps states by field, as
    it does since Hopper.
    """

    busid: str
    capability: tuple[int, int] = (9, 0)
    ends: Sequence[tuple[str, bool]] = ()
    c2c: Sequence[tuple[bool, int]] = ()
    fields: bool = True


class FakeNvml(types.ModuleType):
    """The functions that are asked, over these GPUs. ``driver`` False: there is none, so the start fails."""

    NVMLError = NVMLError
    NVML_SUCCESS, NVML_FEATURE_ENABLED = 0, 1
    NVML_NVLINK_MAX_LINKS, NVML_NVLINK_DEVICE_TYPE_GPU = 18, 0
    NVML_FI_DEV_NVLINK_GET_STATE = 165
    NVML_FI_DEV_C2C_LINK_COUNT, NVML_FI_DEV_C2C_LINK_GET_STATUS, NVML_FI_DEV_C2C_LINK_GET_MAX_BW = 170, 171, 172

    def __init__(self, gpus: Sequence[FakeGpu], driver: bool = True) -> None:
        super().__init__("pynvml")
        self.gpus, self.driver, self.started = gpus, driver, 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError("Driver Not Loaded")
        self.started += 1

    def nvmlShutdown(self) -> None:
        self.started -= 1

    def nvmlDeviceGetCount(self) -> int:
        assert self.started
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:
        return self.gpus[index]

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> types.SimpleNamespace:
        return _pci(gpu.busid)

    def nvmlDeviceGetCudaComputeCapability(self, gpu: FakeGpu) -> tuple[int, int]:
        return gpu.capability

    def nvmlDeviceGetNvLinkState(self, gpu: FakeGpu, link: int) -> int:
        return int(self._end(gpu, link)[1])

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: FakeGpu, link: int) -> types.SimpleNamespace:
        return _pci(self._end(gpu, link)[0])

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: FakeGpu, link: int) -> int:
        return 2 if self._end(gpu, link)[0].endswith(("C3:00.0", "C4:00.0", "C5:00.0", "C6:00.0")) else 0

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, wanted: Sequence[tuple[int, int]]) -> list[types.SimpleNamespace]:
        return [self._field(gpu, *each) for each in wanted]

    def _end(self, gpu: FakeGpu, link: int) -> tuple[str, bool]:
        if link >= len(gpu.ends):
            raise NVMLError("Invalid Argument")
        return gpu.ends[link]

    def _field(self, gpu: FakeGpu, field: int, scope: int) -> types.SimpleNamespace:
        found: int | None = None
        if gpu.fields and field == self.NVML_FI_DEV_NVLINK_GET_STATE and scope < len(gpu.ends):
            found = int(gpu.ends[scope][1])
        elif gpu.c2c and field == self.NVML_FI_DEV_C2C_LINK_COUNT:
            found = len(gpu.c2c)
        elif gpu.c2c and field in (self.NVML_FI_DEV_C2C_LINK_GET_STATUS, self.NVML_FI_DEV_C2C_LINK_GET_MAX_BW):
            found = int(gpu.c2c[scope][field == self.NVML_FI_DEV_C2C_LINK_GET_MAX_BW])
        refused = 3  # NVML_ERROR_NOT_SUPPORTED
        return types.SimpleNamespace(
            nvmlReturn=refused if found is None else 0, value=types.SimpleNamespace(uiVal=found or 0)
        )


def _pci(busid: str) -> types.SimpleNamespace:
    return types.SimpleNamespace(busId=busid)
