"""What a link of a machine carries, in GB/s a direction (1e9 bytes a second), and what it waits, in microseconds.

The numbers are NCCL's published ones (NVIDIA/nccl, src/graph/topo.h and topo.cc of 2.32, and the latency tables of
src/graph/tuning.cc). They are what data gets through, not what the data sheet of a link says.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxring.topology.machine import Cpu

# GB/s of one NVLink, by the least compute capability that has it. 8.6 has links of its own.
_NVLINK = ((107, 31.2), (100, 40.1), (90, 20.6), (87, 20.0), (86, 12.0), (70, 20.0), (60, 18.0))
_NVLINK_UNKNOWN = 20.0

# GB/s of one PCIe lane, by GT/s. Sixteen of PCIe 3 carry 12 GB/s.
_PCIE_LANE = {2.5: 0.1875, 5.0: 0.375, 8.0: 0.75, 16.0: 1.5, 32.0: 3.0, 64.0: 6.0}
_PCIE_LANES = 16
# A virtual machine may hide a GPU's PCIe speed. Then it has that of GPUs of its architecture (NVIDIA's data sheets).
_PCIE_OF_GPU = ((100, 64.0), (90, 32.0), (80, 16.0))
_PCIE_UNKNOWN = 8.0

_INTEL = ((207, 40.0), (143, 22.0), (85, 10.0))  # Emerald Rapids, Sapphire Rapids, Skylake, by model
_INTEL_OLDER = 6.0
_AMD = ((26, 32.0), (25, 24.0))  # Zen 5, Zen 3 and 4, by family
_AMD_OLDER = 16.0
_ARM, _POWER, _ZHAOXIN = 6.0, 32.0, 6.0

NVLINK_US, PCIE_US, CPU_US, NET_US = 0.6, 1.0, 1.0, 2.7

# NCCL takes this for a NIC that does not say its speed: 10 Gbit/s.
_NIC_UNKNOWN_MBPS = 10000


def nvlink(sm: int) -> float:
    """One NVLink of a GPU of compute capability sm / 10."""
    return next((speed for least, speed in _NVLINK if sm >= least), _NVLINK_UNKNOWN)


def pcie(speed: str, width: int, sm: int = 0) -> float:
    """A PCIe link by the kernel's text ("16.0 GT/s PCIe") and its lanes; `sm` is the GPU's at its end, 0 for others."""
    number = re.match(r"\s*([0-9]+(?:\.[0-9]+)?)", speed)
    rate = float(number[1]) if number else 0.0
    if rate not in _PCIE_LANE:
        rate = next((rate for least, rate in _PCIE_OF_GPU if sm >= least), _PCIE_UNKNOWN)
    return _PCIE_LANE[rate] * (width if width > 0 else _PCIE_LANES)


def between_cpus(cpu: Cpu) -> float:
    """The link from one NUMA node to another of the same machine."""
    if cpu.arch.startswith(("arm", "aarch64")):
        return _ARM
    if cpu.arch.startswith("ppc"):
        return _POWER
    if cpu.vendor == "AuthenticAMD":
        # A family above 15 is written as CPUID has it: 15 in the low four bits and the rest above.
        family = 15 + (cpu.family >> 4) if cpu.family & 15 == 15 else cpu.family
        return next((speed for least, speed in _AMD if family >= least), _AMD_OLDER)
    if cpu.vendor in ("CentaurHauls", "  Shanghai  "):
        return _ZHAOXIN
    return next((speed for model, speed in _INTEL if cpu.model == model), _INTEL_OLDER)


def nic(mbps: int) -> float:
    """A NIC's port by its speed in Mbit/s."""
    return (mbps if mbps > 0 else _NIC_UNKNOWN_MBPS) / 8000
