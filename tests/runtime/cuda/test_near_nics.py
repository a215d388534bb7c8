"""Which NICs may address a GPU's memory, by what the processes of a host see together."""

from __future__ import annotations

import dataclasses
import types

import pytest

from jaxring.errors import JoinError
from jaxring.runtime import machines
from jaxring.runtime.cuda import service
from jaxring.runtime.cuda.communicators import Devices
from jaxring.runtime.cuda.near_nics import NearNics
from jaxring.topology.machine import Cpu, Gpu, Machine, Net, Pci
from jaxring.world import wire
from tests.world.world_fakes import DirStore

BRIDGE, GPU, NIC = "0000:10:00.0", "0000:11:00.0", "0000:12:00.0"
WHOLE = Machine(
    (Cpu(0, "0-3"),),
    (
        Pci(BRIDGE, 0, "", "0x060400", "32.0 GT/s PCIe", 16),
        Pci(GPU, 0, BRIDGE, "0x030200", "32.0 GT/s PCIe", 16),
        Pci(NIC, 0, BRIDGE, "0x020700", "32.0 GT/s PCIe", 16),
    ),
    (Net("mlx5_0", NIC, 0, 1, 400000),),
    (Gpu(0, GPU, 0, 90),),
    "whole",
)
# A container that hides the NIC.
HIDDEN = dataclasses.replace(WHOLE, pcis=WHOLE.pcis[:2], nets=())


class Native:
    """Records what the engine is told."""

    def __init__(self) -> None:
        self.allowed: list[tuple[int, list[str]]] = []

    def device(self, gpu: int):
        assert gpu == 0
        return types.SimpleNamespace(busid=GPU)

    def allow_direct(self, gpu: int, nics: list[str]) -> None:
        self.allowed.append((gpu, nics))


@pytest.fixture
def store(tmp_path):
    return DirStore(tmp_path)


def near(store, others: dict[int, tuple[str, Machine]], *meetings: set[int]) -> list[tuple[int, list[str]]]:
    native = Native()
    found = NearNics(native, {0}, "pxb", HIDDEN)
    machines.publish(store, 0, "here", HIDDEN)
    for process, view in others.items():
        machines.publish(store, process, *view)
    for processes in meetings:
        found.meet(store, processes, "here", 0.1)
    return native.allowed


def test_a_nic_that_another_process_of_the_host_sees_is_near(store):
    assert near(store, {1: ("here", WHOLE)}, {0}, {0, 1}) == [(0, []), (0, []), (0, ["mlx5_0"])]


def test_what_a_process_of_another_host_sees_does_not_count(store):
    assert near(store, {1: ("there", WHOLE)}, {0, 1}) == [(0, []), (0, [])]


def test_who_is_known_is_not_asked_again(store):
    assert near(store, {1: ("here", WHOLE), 2: ("here", HIDDEN)}, {0, 1}, {1}, {0, 2}) == [
        (0, []),
        (0, ["mlx5_0"]),
        (0, ["mlx5_0"]),
    ]


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (
            ("here", dataclasses.replace(WHOLE, cpus=(*WHOLE.cpus, Cpu(1, "4-7")), pcis=(Pci(GPU, 1),), nets=())),
            "do not see one machine",
        ),
        (None, "Nobody set jaxring/machine/1"),
    ],
)
def test_what_cannot_be_merged_is_warned_of_and_changes_nothing(store, caplog, view, why):
    assert near(store, {1: view} if view else {}, {0, 1}, {0, 1}) == [(0, [])]
    assert caplog.text.count("GPUs use the NICs near them that were known before. ") == 1
    assert why in caplog.text


def test_what_came_late_is_asked_for_again(store):
    native = Native()
    found = NearNics(native, {0}, "pxb", HIDDEN)
    machines.publish(store, 0, "here", HIDDEN)
    found.meet(store, {0, 1}, "here", 0.1)
    machines.publish(store, 1, "here", WHOLE)
    found.meet(store, {0, 1}, "here", 0.1)
    assert native.allowed[-1] == (0, ["mlx5_0"])


def test_a_view_that_cannot_be_read_names_its_process(store):
    store.set("jaxring/machine/1", wire.encode({"host": "here", "xml": "<system>"}))
    with pytest.raises(JoinError, match="What process 1 published of its machine cannot be read"):
        machines.of_host(store, [1], "here", 0.1)


def test_a_gpu_that_cuda_does_not_describe_is_a_warning(monkeypatch, caplog):
    native = Native()
    monkeypatch.setattr(service, "native_module", lambda: native)
    monkeypatch.setattr(service, "cuda_devices", lambda _: Devices("cuda", {0: 0}, {0: 0}))
    assert service.bus_ids() == [GPU]

    def device(gpu: int):
        raise RuntimeError("CUDA driver version is insufficient for CUDA runtime version")

    monkeypatch.setattr(native, "device", device)
    assert service.bus_ids() == []
    assert "not sorted by their distance from GPUs" in caplog.text
    assert "insufficient" in caplog.text
