"""Machines: from NCCL's XML, from a /sys, their distances; what `jaxring doctor` finds and `jaxring topo` shows."""

from __future__ import annotations

import dataclasses
import socket
import types

import pytest

from jaxring.cli import main
from jaxring.errors import SettingsError
from jaxring.settings import load
from jaxring.topology import detect, findings, host, paths, ports, xml
from jaxring.topology.machine import Cpu, Machine, merged
from tests.topology.machines import shared_files

# Two CPUs; a GPU and two NICs under the first one's switches, a GPU and a NIC at the second; one NVSwitch.
FILE = """<system version="1">
  <cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="AuthenticAMD">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
        <pci busid="0000:12:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
          <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:C4:00.0" count="4" tclass="0x068000"/></gpu>
        </pci>
        <pci busid="0000:13:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
          <nic><net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x1" gdr="1"/></nic>
        </pci>
      </pci>
      <pci busid="0000:14:00.0" class="0x020700" link_speed="" link_width="8">
        <nic><net name="mlx5_1" dev="1" speed="400000" port="1" guid="0x2"/></nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="00000000,00000001,000000f0">
    <pci busid="0000:80:00.0" class="0x030200" link_speed="" link_width="16">
      <gpu dev="1" sm="90"><nvlink target="0000:c4:00.0" count="4" tclass="0x068000"/></gpu>
    </pci>
    <nic><net name="eth0" dev="2" speed="10000" port="0" guid="0x0"/></nic>
  </cpu>
</system>"""


@pytest.fixture
def machine(tmp_path):
    (tmp_path / "topology.xml").write_text(FILE)
    return xml.read(str(tmp_path / "topology.xml"))


def test_a_file_is_read_and_written_back(machine, tmp_path):
    assert [cpu.affinity for cpu in machine.cpus] == ["0,1,2,3", "4,5,6,7,32"]
    assert [net.name for net in machine.nets] == ["mlx5_0", "mlx5_1", "eth0"]
    # Real machines' files too, where they lie beside the project.
    files = shared_files("**/*topo*.xml")
    for each in [machine, *(xml.read(str(file)) for file in files)]:
        (tmp_path / "copy.xml").write_text(xml.text(each), encoding="utf-8")
        copy = xml.read(str(tmp_path / "copy.xml"))
        assert copy.cpus == each.cpus
        assert (set(copy.pcis), set(copy.nets), copy.gpus) == (set(each.pcis), set(each.nets), each.gpus)


def test_a_file_of_two_devices_of_one_name_is_refused(tmp_path):
    (tmp_path / "x.xml").write_text(FILE.replace('name="eth0"', 'name="GPU1"'))
    with pytest.raises(SettingsError, match="a NIC is called 'GPU1', as another device is"):
        xml.read(str(tmp_path / "x.xml"))


def test_cpus_say_their_vendor_family_and_model(tmp_path):
    (tmp_path / "cpuinfo").write_text("vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel\t\t: 17\n\nmodel\t\t: 3\n")
    assert detect.cpuid(str(tmp_path / "cpuinfo")) == ("AuthenticAMD", 25, 17)
    assert detect.cpuid(str(tmp_path / "none")) == ("", -1, -1)


def test_distances_are_nccls(machine):
    gpu0, gpu1, mlx0, mlx1, eth0 = *machine.gpus, *machine.nets
    levels = [paths.of_devices(machine, gpu0, other) for other in (gpu0, gpu1, mlx0, mlx1, eth0)]
    assert levels == ["loc", "nvl", "pix", "pxb", "sys"]
    assert paths.of_devices(machine, gpu1, eth0) == "phb"
    assert [paths.to_cpus(machine, mlx0.busid, cpus) for cpus in ({3}, {32}, {3, 32})] == ["phb", "sys", "phb"]


@pytest.mark.parametrize(
    ("level", "near"),
    [("loc", []), ("pix", ["mlx5_0"]), ("pxb", ["mlx5_0", "mlx5_1"]), ("sys", ["mlx5_0", "mlx5_1", "eth0"])],
)
def test_the_nics_that_may_address_a_gpu(machine, level, near):
    assert paths.nics_near(machine, machine.gpus[0].busid, level) == near
    # Of a GPU that is in no file nothing is known.
    assert paths.nics_near(machine, "0000:ff:00.0", level) == (near if level in ("loc", "sys") else [])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<system>\n<cpu", "line 2: unclosed token"),
        (f'<system><cpu numaid="{10**400}"/></system>', "line 1: <cpu numaid='1000.*'> is no whole number of 64 bits"),
        (
            '<system><cpu><pci busid="a&#10;b"/><pci busid="a&#10;b"/></cpu></system>',
            r"line 1: 'PCI function a\\nb is described twice, first on line 1'",
        ),
        ("<html/>", "line 1: the outermost element is <html>"),
        ('<system>\n<cpu numaid="x"/></system>', "line 2: <cpu numaid='x'> is no whole number"),
        ('<system><cpu numaid="0" affinity="-1"/></system>', "line 1: an affinity is not a mask"),
        ('<system>\n<cpu numaid="0">\n<pci/></cpu></system>', "line 3: a <pci> has no busid"),
        (FILE.replace('dev="1" sm', 'dev="0" sm'), "line 19: GPU 0 is described twice, first on line 6"),
        (FILE.replace("0000:80:00.0", "0000:12:00.0"), "line 18: PCI function 0000:12:00.0 .* first on line 5"),
    ],
)
def test_what_is_no_topology_is_an_error(tmp_path, text, why):
    (tmp_path / "x.xml").write_text(text)
    with pytest.raises(SettingsError, match=f"is no topology in NCCL's XML: .*{why}"):
        xml.read(str(tmp_path / "x.xml"))
    with pytest.raises(SettingsError, match="cannot be read"):
        xml.read(str(tmp_path / "none.xml"))


def put(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def sys_root(tmp_path):
    """A /sys with a RoCE port behind a switch of CPU 1, and its interface."""
    root = tmp_path / "sys"
    # A root port, a switch's two ports, and the NIC.
    nic = "devices/pci0000:80/0000:80:01.0/0000:81:00.0/0000:82:00.0/0000:83:00.0"
    gid = "0000:0000:0000:0000:0000:ffff:0a00:0001"
    port = {
        "state": "4: ACTIVE",
        "rate": "100 Gb/sec (4X EDR)",
        "link_layer": "Ethernet",
        "lid": "0x0",
        "gids/0": "fe80:0000:0000:0000:0000:0000:0000:0001",
        "gids/1": gid,
        "gids/2": "0000:0000:0000:0000:0000:0000:0000:0000",
        "gid_attrs/types/0": "IB/RoCE v1",
        "gid_attrs/types/1": "RoCE v2",
        "gid_attrs/ndevs/1": "eth2",
    }
    files = {f"{nic}/infiniband/rocep0/ports/1/{name}": text for name, text in port.items()}
    files |= {f"{nic}/infiniband/rocep0/node_guid": "0002:c903:00a1:b2c3", f"{nic}/numa_node": "1"}
    files |= {f"{nic}/net/eth2/speed": "100000", f"{nic}/net/eth2/mtu": "1500", f"{nic}/class": "0x020000"}
    files |= {f"devices/system/node/node{i}/cpulist": f"{4 * i}-{4 * i + 3}" for i in range(2)}
    put(root, files)
    for kind, name in (("infiniband", "rocep0"), ("net", "eth2")):
        (root / nic / kind / name / "device").symlink_to(root / nic)
        (root / "class" / kind).mkdir(parents=True)
        (root / "class" / kind / name).symlink_to(root / nic / kind / name)
    return root


def test_a_sys_is_read(sys_root):
    found = detect.detect(str(sys_root))
    assert [(net.name, net.busid, net.mbps) for net in found.nets] == [
        ("rocep0", "0000:83:00.0", 100000),
        ("eth2", "0000:83:00.0", 100000),
    ]
    # The root port is the CPU's, and a switch's two ports are one switch.
    assert found.path("0000:83:00.0", 1) == ("cpu 1", "0000:81:00.0", "0000:83:00.0")
    assert paths.of_devices(found, *found.nets) == "loc"
    (port,) = ports.from_sys(str(sys_root))
    assert (port.layer, port.active, port.mbps, port.interface) == ("RoCE", True, 100000, "eth2")
    assert [(gid.index, gid.type, gid.family) for gid in port.gids] == [
        (0, "IB/RoCE v1", "link-local"),
        (1, "RoCE v2", "IPv4"),
    ]
    # A vendor's file with bare functions gets the devices that are found there.
    bare = dataclasses.replace(found, nets=(), gpus=(), source="file")
    assert merged(bare, found).nets == found.nets


def test_pyverbs_answers_the_same(sys_root):
    """An imitation of its interface, with the numbers of the verbs interface."""
    entries = [
        types.SimpleNamespace(gid_index=i, port_num=1, gid_type=kind, gid_str=address, ndev_ifindex=0)
        for i, (kind, address) in enumerate(
            [(1, "fe80:0000:0000:0000:0000:0000:0000:0001"), (2, "0000:0000:0000:0000:0000:ffff:0a00:0001")]
        )
    ]
    attributes = types.SimpleNamespace(
        state=4, active_mtu=3, active_speed=32, active_width=2, link_layer=2, lid=0, gid_tbl_len=2
    )

    class Context:
        def __init__(self, name):
            assert name == "rocep0"

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def query_device(self):
            return types.SimpleNamespace(phys_port_cnt=1)

        def query_gid_table(self, most):
            return entries[:most]

        def query_port(self, number):
            return attributes

    device = types.SimpleNamespace(name=b"rocep0", transport_type=0)
    verbs = types.SimpleNamespace(get_device_list=lambda: [device], Context=Context)
    (port,) = ports.from_pyverbs(verbs, str(sys_root))
    (told,) = ports.from_sys(str(sys_root))
    # What pyverbs knows besides is the MTU; the interface is asked of the kernel by a number, which is none here.
    same = dataclasses.replace(port, mtu=0, interface="eth2", gids=())
    assert (port.mtu, same) == (1024, dataclasses.replace(told, gids=()))
    assert [(g.index, g.type, g.address) for g in port.gids] == [(g.index, g.type, g.address) for g in told.gids]


HOST = dataclasses.replace(
    host.describe(),
    resolves=True,
    cpus=2,
    memlock=-1,
    shm_bytes=8 << 30,
    huge_pages="madvise",
    congestion="cubic",
    kubernetes=False,
    gpus=False,
    interfaces=(host.Interface("eth2", "up", 4500, 100000, ("10.0.0.1",)),),
)


def found(of_host, some_ports, machine=None, cpus=(0,)):
    return findings.find(of_host, some_ports, machine or Machine(), load({}), cpus)


def test_what_is_lacking_is_found_with_its_cost_and_its_mend(sys_root):
    (port,) = ports.from_sys(str(sys_root))
    port = dataclasses.replace(port, mtu=4096)
    assert found(HOST, [port]) == []
    poor = dataclasses.replace(
        HOST, memlock=65536, ipc_lock=False, shm_bytes=64 << 20, huge_pages="never", congestion="bbr", cpus=1
    )
    said = found(poor, [port])
    assert [finding.grave for finding in said] == [True, False, False, False, False]
    text = " ".join(f"{f.what} {f.cost} {f.mend}" for f in said)
    for part in (
        "64 KiB",
        "so 0 can be made",
        "ulimit -l",
        "/dev/shm has 64 MiB",
        "--shm-size",
        "bbr",
        "madvise",
        "one CPU",
    ):
        assert part in text
    (unknown,) = found(dataclasses.replace(HOST, name="nowhere", resolves=False), [port])
    assert (unknown.what, unknown.grave) == ("This host's name, nowhere, has no address here.", True)
    pod = " ".join(f.mend for f in found(dataclasses.replace(poor, kubernetes=True), []))
    for part in ("IPC_LOCK", "rdma/hca", "medium: Memory"):
        assert part in pod


def test_a_host_knows_whether_its_name_has_an_address(monkeypatch):
    find = socket.getaddrinfo

    def addresses(name, *more):
        if name == "no-such-host":  # which the machine's own name server need not be asked
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return find(name, *more)

    monkeypatch.setattr(host.socket, "getaddrinfo", addresses)
    for name, resolves in (("localhost", True), ("no-such-host", False), ("a" * 64, False)):
        monkeypatch.setattr(host.socket, "gethostname", lambda name=name: name)
        described = host.describe()
        assert (described.name, described.resolves) == (name, resolves)


def test_ports_and_their_surroundings(sys_root):
    (port,) = ports.from_sys(str(sys_root))
    down = dataclasses.replace(port, device="rocep1", state="down", mtu=4096)
    slow = dataclasses.replace(port, device="rocep2", mbps=25000, mtu=1024, gids=port.gids[:1])
    said = [f.what for f in found(HOST, [dataclasses.replace(port, mtu=4096), down, slow])]
    assert any("rocep1 port 1 (RoCE, down) is not active" in what for what in said)
    assert any("rocep2" in what and "no GID of RoCE v2 with an IPv4" in what for what in said)
    assert any("25, 100 Gbit/s" in what for what in said)
    assert any("rocep2" in what and "packets of 1024 bytes; eth2 allows 4096" in what for what in said)
    assert any("different MTUs: 1024, 4096" in what for what in said)
    machine = dataclasses.replace(detect.detect(str(sys_root)), cpus=(Cpu(0, "0-3"), Cpu(1, "4-7")))
    pci = dataclasses.replace(port, mtu=4096, pci="/sys/devices/pci0000:80/0000:83:00.0")
    assert [f.what for f in found(HOST, [pci], machine, {1})] == [
        "This process runs on no CPU beside rocep0 port 1 (RoCE, active)."
    ]
    nvidia = dataclasses.replace(HOST, gpus=True, dmabuf="Linux 5.4 is older than 5.12")
    assert any("nvidia-peermem" in f.mend for f in found(nvidia, [dataclasses.replace(port, mtu=4096)]))


def test_the_commands_show_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "topology.xml").write_text(FILE)
    monkeypatch.setenv("JAXRING_TOPO_FILE", str(tmp_path / "topology.xml"))
    monkeypatch.setenv("NCCL_IB_RETRY_CNT", "5")
    assert main(["topo"]) == 0
    out = capsys.readouterr().out
    assert "GPU0, 4 NVLinks" in out
    assert next(row.split()[-3:] for row in out.splitlines() if row.startswith("G0 ")) == ["PIX*", "PXB*", "SYS"]
    assert "mlx5_0" in next(row for row in out.splitlines()[-6:] if "GPU0" in row)
    assert main(["topo", "--xml"]) == 0
    assert 'busid="0000:13:00.0"' in capsys.readouterr().out
    main(["doctor"])  # 1 where this very host has a grave lack
    out = capsys.readouterr().out
    assert ["JAXRING_IB_RETRY_CNT", "5", "NCCL_IB_RETRY_CNT"] in [row.split() for row in out.splitlines()]
    for part in ("locked memory", "/dev/shm", "127.0.0.1", "RDMA ports (by ", "how to mend it"):
        assert part in out
    assert main(["topo", "--file", "none.xml"]) == 1
