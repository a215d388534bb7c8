"""One machine from what several processes of it see."""

from __future__ import annotations

import dataclasses
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxring.topology import xml
from jaxring.topology.fusing import fused
from jaxring.topology.machine import Cpu, Gpu, Machine, Net, Pci
from tests import starting
from tests.topology.machines import nvswitch_machine

WHOLE = Machine(
    (Cpu(0, "0,1,2,3", "x86_64"), Cpu(1, "4,5,6,7", "x86_64")),
    (
        Pci("0000:10:00.0", 0, "", "0x060400", "32.0 GT/s PCIe", 16),
        Pci("0000:80:00.0", 1, "", "0x030200", "32.0 GT/s PCIe", 16),
        Pci("0000:11:00.0", 0, "0000:10:00.0", "0x030200", "32.0 GT/s PCIe", 16),
        Pci("0000:12:00.0", 0, "0000:10:00.0", "0x020700", "32.0 GT/s PCIe", 16),
    ),
    (Net("mlx5_0", "0000:12:00.0", 0, 1, 400000, "0x1", True, 0), Net("eth0", "", 1, 1, 10000, "0x2", False, 1)),
    (
        Gpu(0, "0000:11:00.0", 0, 90, (("0000:80:00.0", 4),)),
        Gpu(1, "0000:80:00.0", 1, 90, (("0000:11:00.0", 4),)),
    ),
    "whole",
)


def seen(machine, gpus, nets=(), source="some"):
    """What a process sees that is given these GPUs and NICs, by their places: it numbers its GPUs from 0."""
    mine = tuple(dataclasses.replace(machine.gpus[at], dev=number) for number, at in enumerate(gpus))
    ports = tuple(machine.nets[at] for at in nets)
    wanted = {device.busid for device in (*mine, *ports)}
    above = {pci.busid: pci.parent for pci in machine.pcis}
    for busid in list(wanted):
        while busid := above.get(busid, ""):
            wanted.add(busid)
    return Machine(machine.cpus, tuple(pci for pci in machine.pcis if pci.busid in wanted), ports, mine, source)


def facts(machine):
    return (machine.cpus, set(machine.pcis), set(machine.nets), machine.gpus)


def test_devices_that_single_processes_see_are_one_machine():
    one, other = seen(WHOLE, [0], [0], "one"), seen(WHOLE, [1], [1], "other")
    assert [gpu.dev for gpu in (*one.gpus, *other.gpus)] == [0, 0]
    found = fused([one, other])
    assert facts(found) == facts(WHOLE)
    assert found.source == "one, other"
    assert facts(fused([other, one])) == facts(WHOLE)


def test_a_machine_with_itself_is_itself():
    for machine in (WHOLE, nvswitch_machine(8)):
        assert facts(fused([machine, machine])) == facts(machine)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sets(st.integers(0, 7)), st.booleans()), min_size=1, max_size=5))
def test_whatever_each_sees_the_whole_is_what_all_see(views):
    whole = nvswitch_machine(8)
    nets = range(len(whole.nets))
    found = fused([seen(whole, sorted(gpus), nets if has_nets else ()) for gpus, has_nets in views])
    anywhere = set().union(*(gpus for gpus, _ in views))
    assert {gpu.busid for gpu in found.gpus} == {whole.gpus[at].busid for at in anywhere}
    assert len({gpu.dev for gpu in found.gpus}) == len(found.gpus)
    assert [gpu.busid for gpu in found.gpus] == sorted(gpu.busid for gpu in found.gpus)
    busids = [pci.busid for pci in found.pcis]
    known = {pci.busid for pci in found.pcis}
    assert all(busids.index(p.parent) < busids.index(p.busid) for p in found.pcis if p.parent in known)


def test_what_one_does_not_know_another_says():
    blind = dataclasses.replace(
        WHOLE,
        cpus=(Cpu(0, "0,1"), Cpu(1, "4,5,6,7")),
        pcis=tuple(dataclasses.replace(pci, parent="", speed="", width=0) for pci in WHOLE.pcis),
        nets=(Net("mlx5_0", "0000:12:00.0"), Net("eth0", "", 1)),
        gpus=tuple(dataclasses.replace(gpu, sm=0, nvlinks=()) for gpu in WHOLE.gpus),
    )
    assert facts(fused([blind, WHOLE])) == facts(WHOLE)
    assert facts(fused([WHOLE, blind])) == facts(WHOLE)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            {"pcis": (Pci("0000:11:00.0", 1),)},
            "PCI function 0000:11:00.0 is below the root at CPU 1 in b, and below 0000:10:00.0 at CPU 0 elsewhere",
        ),
        ({"nets": (Net("mlx5_0", "0000:99:00.0"),)}, "NIC mlx5_0 is at 0000:99:00.0 in b, and at 0000:12:00.0"),
    ],
)
def test_two_machines_are_not_one(change, what):
    with pytest.raises(ValueError, match=what):
        fused([WHOLE, dataclasses.replace(WHOLE, source="b", **change)])


JOB = """
import os, sys
process = int(os.environ["JAX_PROCESS_ID"])
os.environ["JAXRING_TOPO_FILE"] = sys.argv[1 + process]
os.environ["JAXRING_HOSTID"] = sys.argv[3].split(",")[process]
from jaxring.cli import main
sys.exit(main(["topo", "--job", "--xml"]))
"""


def run(tmp_path, views, hosts):
    script = tmp_path / "job.py"
    script.write_text(JOB)
    files = []
    for number, view in enumerate(views):
        files.append(str(tmp_path / f"{number}.xml"))
        (tmp_path / f"{number}.xml").write_text(xml.text(view))
    command = [sys.executable, "-m", "jaxring.cli", "run", "-n", "2", "--no-prefix", str(script), *files, hosts]
    return starting.run(command, env=os.environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_the_processes_of_a_host_show_one_machine(tmp_path):
    one, other = seen(WHOLE, [0], [0]), seen(WHOLE, [1], [1])
    done = run(tmp_path, [one, other], "a,a")
    assert done.returncode == 0, done.stderr
    found = xml.parse(done.stdout.encode(), "out")
    assert facts(found) == facts(WHOLE)
    # Of another host's nothing is taken.
    done = run(tmp_path, [one, other], "a,b")
    assert [gpu.busid for gpu in xml.parse(done.stdout.encode(), "out").gpus] == ["0000:11:00.0"]


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_processes_that_contradict_each_other_are_an_error(tmp_path):
    done = run(tmp_path, [WHOLE, dataclasses.replace(WHOLE, pcis=(Pci("0000:11:00.0", 1),), nets=(), gpus=())], "a,a")
    assert done.returncode == 1
    assert "The processes on this host do not see one machine" in done.stderr
    assert "JAXRING_HOSTID" in done.stderr
