"""What NVML says of a machine's GPUs joins what /sys says of them."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest

from jaxring.cli import main
from jaxring.settings import load
from jaxring.topology import detect, nvml, paths, xml
from jaxring.topology.wiring import wire
from tests.topology.machines import nvswitch_machine, pcie_machine
from tests.topology.nvml_fake import FakeGpu, FakeNvml

SWITCHES = ("00000000:C3:00.0", "00000000:C4:00.0", "00000000:C5:00.0", "00000000:C6:00.0")


def hgx_h100(driver=True):
    """Eight H100: of 18 NVLinks of each, 4 or 5 lead to each of four NVSwitches."""
    to = [(SWITCHES[link * 4 // 18], True) for link in range(18)]
    return FakeNvml([FakeGpu(f"00000000:1{gpu:X}:00.0", ends=to) for gpu in range(8)], driver)


@pytest.fixture
def sys_root(tmp_path):
    """A /sys with eight of NVIDIA's GPUs at one CPU."""
    root = tmp_path / "sys"
    for gpu in range(8):
        folder = root / f"devices/pci0000:10/0000:1{gpu:x}:00.0"
        folder.mkdir(parents=True)
        for name, text in {"vendor": "0x10de", "class": "0x030200", "numa_node": "0"}.items():
            (folder / name).write_text(text)
        (root / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
        (root / "bus/pci/devices" / folder.name).symlink_to(folder)
    return root


@pytest.fixture
def fake(monkeypatch):
    """Puts a fake module in pynvml's place."""
    return lambda module: monkeypatch.setitem(sys.modules, "pynvml", module)


def found(sys_root, environ=None):
    return detect.machine(load(environ or {}), str(sys_root))


def test_an_hgx_has_its_nvlinks_and_switches(sys_root, fake):
    module = hgx_h100()
    fake(module)
    machine = found(sys_root)
    assert module.started == 0  # what was opened is closed
    assert [(gpu.busid, gpu.sm) for gpu in machine.gpus] == [(f"0000:1{gpu:x}:00.0", 90) for gpu in range(8)]
    assert machine.gpus[3].nvlinks == (
        ("0000:c3:00.0", 5),
        ("0000:c4:00.0", 4),
        ("0000:c5:00.0", 5),
        ("0000:c6:00.0", 4),
    )
    # The same fabric as that of a file which says so.
    wiring, described = wire(machine), wire(nvswitch_machine(8))
    (carried,) = [x.gigabytes for x in wiring.fabric.links if (x.source, x.kind) == (wiring.at["GPU3"], "nvlink")]
    (expected,) = [x.gigabytes for x in described.fabric.links if (x.source, x.kind) == (3, "nvlink")]
    assert carried == expected
    assert paths.of_devices(machine, machine.gpus[0], machine.gpus[7]) == "nvl"


def test_links_that_are_down_and_gpus_that_are_hidden_are_no_links(sys_root, fake):
    """A100s with a link to each other, asked by the older call; one link is down, one leads to a GPU not here, and one
    to what a virtual machine does not show."""
    ends = [
        ("00000000:11:00.0", True),
        ("00000000:11:00.0", True),
        ("00000000:11:00.0", False),
        ("00000000:99:00.0", True),
    ]
    one = FakeGpu("00000000:10:00.0", (8, 0), ends, fields=False)
    hidden = FakeGpu("00000000:11:00.0", (8, 0), [("00000000:10:00.0", True), ("", True)], fields=False)
    module = FakeNvml([one, hidden])
    module.nvmlDeviceGetNvLinkRemoteDeviceType = lambda gpu, link: 0 if gpu.ends[link][0] else 2
    fake(module)
    first, second, third, *_ = found(sys_root).gpus
    assert (first.sm, first.nvlinks) == (80, (("0000:11:00.0", 2),))
    assert second.nvlinks == (("0000:10:00.0", 1), ("fffffff:ffff:ff", 1))
    assert not third.links_known  # NVML does not show it


def test_a_grace_hopper_has_c2c(sys_root, fake):
    c2c = [(True, 44712)] * 9 + [(False, 44712)]
    fake(FakeNvml([FakeGpu("00000000:10:00.0", c2c=c2c)]))
    machine = found(sys_root)
    assert machine.gpus[0].c2c == pytest.approx(9 * 44.712)
    wiring = wire(machine)
    (link,) = [x for x in wiring.fabric.links if (x.source, x.kind) == (wiring.at["GPU0"], "c2c")]
    assert (link.target, link.gigabytes) == (wiring.at["CPU0"], pytest.approx(402.4, abs=0.1))
    assert machine.gpus[0].nvlinks == ()
    assert machine.gpus[0].links_known  # to have none is known, too


@pytest.mark.parametrize("module", [None, hgx_h100(driver=False)], ids=["no package", "no driver"])
def test_where_nvml_is_not_the_links_are_not_known(module, sys_root, fake, monkeypatch, capsys):
    fake(module)  # None: an import of it fails
    machine = found(sys_root)
    assert [gpu.links_known for gpu in machine.gpus] == [False] * 8
    monkeypatch.setattr(detect, "machine", lambda _: machine)
    for options in ([], ["--paths"], ["--rings"]):
        assert main(["topo", *options]) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert "The NVLinks of GPU0, GPU1, GPU2, GPU3, GPU4, GPU5, GPU6, GPU7 are not known" in said, options
        assert "pip install nvidia-ml-py" in said
    assert main(["topo", "--rings", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nvlinks_unknown"] == [f"GPU{gpu}" for gpu in range(8)]
    # In NCCL's XML they stay unknown as well, so that NCCL asks for itself.
    assert "sm=" not in xml.text(machine)
    assert not xml.parse(xml.text(machine).encode(), "copy").gpus[0].links_known


@pytest.mark.parametrize("missing", ["NVML_FI_DEV_NVLINK_GET_STATE", "NVML_FI_DEV_C2C_LINK_COUNT"])
def test_a_package_that_is_too_old_is_as_none(missing, sys_root, fake, monkeypatch):
    module = hgx_h100()
    fake(module)
    monkeypatch.delattr(FakeNvml, missing)
    assert [gpu.links_known for gpu in found(sys_root).gpus] == [False] * 8
    assert module.started == 0


def test_an_nvml_that_refuses_to_say_what_there_is_is_as_none(sys_root, fake, monkeypatch):
    module = hgx_h100()
    fake(module)

    def refuse():
        raise module.NVMLError

    monkeypatch.setattr(module, "nvmlDeviceGetCount", refuse)
    assert [gpu.links_known for gpu in found(sys_root).gpus] == [False] * 8
    assert module.started == 0


def test_known_links_are_not_said_to_be_unknown(sys_root, fake, monkeypatch, capsys):
    fake(hgx_h100())
    machine = found(sys_root)
    monkeypatch.setattr(detect, "machine", lambda _: machine)
    assert main(["topo", "--rings"]) == 0
    assert "not known" not in capsys.readouterr().out


def test_a_skeleton_that_names_gpus_gets_their_details(sys_root, fake, tmp_path):
    fake(hgx_h100())
    skeleton = pcie_machine(8)
    bare = dataclasses.replace(skeleton, gpus=tuple(dataclasses.replace(gpu, sm=0) for gpu in skeleton.gpus))
    (tmp_path / "skeleton.xml").write_text(xml.text(bare))
    merged = found(sys_root, {"JAXRING_TOPO_FILE": str(tmp_path / "skeleton.xml")})
    assert [(gpu.sm, sum(count for _, count in gpu.nvlinks)) for gpu in merged.gpus] == [(90, 18)] * 8
    assert merged.pcis == skeleton.pcis  # the file's, as before
    # A file that says all of a GPU is believed.
    (tmp_path / "whole.xml").write_text(xml.text(skeleton))
    believed = found(sys_root, {"JAXRING_TOPO_FILE": str(tmp_path / "whole.xml")})
    assert [(gpu.sm, gpu.nvlinks) for gpu in believed.gpus] == [(80, ())] * 8


def test_bus_ids_are_the_kernels():
    assert [nvml.busid(text) for text in ("00000000:C4:00.0", b"00010000:0a:00.0", "", "\x01")] == [
        "0000:c4:00.0",
        "10000:0a:00.0",
        "fffffff:ffff:ff",
        "fffffff:ffff:ff",
    ]
