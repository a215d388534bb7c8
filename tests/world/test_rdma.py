"""Which RDMA ports are used, and when links between hosts go by them."""

from __future__ import annotations

import dataclasses
import os

import pytest

from jaxring.errors import JoinError, SettingsError
from jaxring.settings import load
from jaxring.topology import rdma
from tests.world.world_fakes import FakeNative

V1, V2 = "IB/RoCE v1", "RoCE v2"
TABLE = tuple(
    rdma.Gid(index, kind, address, "eth0")
    for index, (kind, address) in enumerate(
        [(V1, "fe80::1"), (V2, "fe80::1"), (V1, "::ffff:10.0.0.1"), (V2, "::ffff:10.0.0.1"), (V2, "2001:db8::1")]
    )
)


def port(device, layer="RoCE", number=1, state="active", interface="eth0", gids=TABLE):
    return rdma.Port(device, number, state, layer, 4096, 100000, 7, interface, "", gids)


def rails(ports, gpus=(), **variables):
    native = FakeNative(ports)
    try:
        return rdma.rails(native, load({"JAXRING_" + name: value for name, value in variables.items()}), gpus)
    finally:
        native.close()


def names(chosen):
    return [(rail.device, rail.port) for rail in chosen]


@pytest.mark.parametrize(
    ("left", "index", "kind"),
    [
        ((0, 1, 2, 3, 4), 3, f"{V2} IPv4"),
        ((0, 1, 2, 4), 4, f"{V2} IPv6"),
        ((0, 1, 2), 1, f"{V2} link-local"),
        ((0, 2), 2, f"{V1} IPv4"),
        ((0,), 0, f"{V1} link-local"),
    ],
)
def test_the_best_gid_of_a_roce_port(left, index, kind):
    assert rails([port("rxe0", gids=tuple(TABLE[i] for i in left))]) == [rdma.Rail("rxe0", 1, kind, index)]


def test_the_gid_can_be_chosen():
    assert rails([port("rxe0")], IB_GID_INDEX="2") == [rdma.Rail("rxe0", 1, f"{V1} IPv4", 2)]
    with pytest.raises(JoinError, match=r"serves JAXRING_IB_GID_INDEX=9. There are: rxe0 port 1 \(RoCE, active\)"):
        rails([port("rxe0")], IB_GID_INDEX="9")


def test_infiniband_goes_by_lid_and_iwarp_by_ip_address():
    assert rails([port("mlx5_0", "InfiniBand")]) == [rdma.Rail("mlx5_0", 1, "InfiniBand")]
    assert rails([port("siw0", "iWARP", interface="lo")]) == [rdma.Rail("siw0", 1, "iWARP", address="127.0.0.1")]


@pytest.mark.parametrize(
    ("spec", "found"),
    [
        ("", [("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1), ("rxe0", 1)]),
        ("mlx5_1", [("mlx5_1", 1), ("mlx5_1", 2), ("mlx5_10", 1)]),
        ("=mlx5_1", [("mlx5_1", 1), ("mlx5_1", 2)]),
        ("mlx5_1:2,rxe", [("mlx5_1", 2), ("rxe0", 1)]),
        ("^mlx5", [("rxe0", 1)]),
        ("^=mlx5_1:1", [("mlx5_1", 2), ("mlx5_10", 1), ("rxe0", 1)]),
    ],
)
def test_devices_can_be_chosen(spec, found):
    have = [port("mlx5_1"), port("mlx5_1", number=2), port("mlx5_10"), port("rxe0"), port("down", state="down")]
    assert names(rails(have, IB_HCA=spec)) == found


def test_what_is_asked_for_and_not_there_is_an_error():
    assert rails([]) == rails([port("rxe0", state="down")]) == []
    with pytest.raises(JoinError, match=r"serves JAXRING_NET=IB. There are: none; there is no device"):
        rails([], NET="IB")
    with pytest.raises(JoinError, match=r"JAXRING_IB_HCA=mlx5. There are: rxe0 port 1"):
        rails([port("rxe0")], IB_HCA="mlx5")
    with pytest.raises(JoinError, match=r"rxe0 port 1 \(RoCE, down\)"):
        rails([port("rxe0", state="down")], NET="IB")


def test_it_can_be_turned_off():
    assert rails([port("rxe0")], NET="socket") == rails([port("rxe0")], NET="plugin:x") == []
    # What RDMA carries is not encrypted.
    assert rails([port("rxe0")], NET="TLS") == []


HOST = [port("rxe0"), port("rxe1")]


def test_two_hosts_with_rdma_are_linked_by_it(make_world):
    (zero, native0) = make_world(0, HOSTID="a", rdma=HOST, IB_QPS_PER_CONNECTION="2", IB_TIMEOUT="9")
    (_, native1) = make_world(1, HOSTID="b", rdma=HOST, IB_QPS_PER_CONNECTION="2", IB_RETRY_CNT="3")
    assert [zero.link(1, 0), zero.link(1, 1), zero.transport(1)] == ["verbs"] * 3
    place = {"device": "rxe1", "port": "1", "gid_index": "3", "address": "", "queue_pairs": "2"}
    tuned = [place | {"timeout": "9", "retry_count": "7"}, place | {"timeout": "20", "retry_count": "3"}]
    assert native0.named("verbs_offer")[1] == ("verbs_offer", 1, 1, True, tuned[0])
    assert native1.wait_for("verbs_offer", 2)[1] == ("verbs_offer", 0, 1, False, tuned[1])
    assert native0.named("verbs_prepare")[1] == ("verbs_prepare", 1, 1, True, "offer of rxe1")
    assert native1.wait_for("verbs_finish", 2)[0] == ("verbs_finish", 0, 0, False)
    # The connection stays open beside the link.
    native0.close()
    assert native1.sockets[0, 0, False].recv(1) == b""


def test_one_host_and_hosts_without_a_common_kind_take_something_else(make_world):
    same, _ = make_world(0, rdma=HOST)
    make_world(1, rdma=HOST)
    assert same.link(1, 0) == "shm"


@pytest.mark.parametrize("variables", [{}, {"NET": "IB"}])
def test_other_kinds_are_tcp_or_an_error_where_rdma_is_asked_for(make_world, variables):
    zero, _ = make_world(0, HOSTID="a", rdma=HOST, **variables)
    make_world(1, HOSTID="b", rdma=[port("mlx5_0", "InfiniBand", gids=())], **variables)
    if variables:
        with pytest.raises(JoinError, match=r"no kind of it in common: RoCE v2 IPv4 here, InfiniBand there"):
            zero.link(1, 0)
    else:
        assert zero.link(1, 0) == "tcp"


@pytest.mark.parametrize("side", [0, 1])
def test_what_fails_on_either_side_is_told_and_nothing_else_is_taken(make_world, side):
    worlds = [make_world(p, HOSTID=str(p), rdma=HOST) for p in range(2)]
    worlds[side][1].fail_verbs = "rxe0 port 1: out of memory"
    with pytest.raises(JoinError, match=r"rxe0 port 1: out of memory\. JAXRING_NET=Socket takes TCP"):
        worlds[0][0].link(1, 0)
    assert not worlds[0][1].named("tcp_finish")
    worlds[side][1].fail_verbs = ""
    assert worlds[0][0].link(1, 0) == "verbs"


def test_the_ports_beside_a_process_come_first(tmp_path):
    near, far = min(os.sched_getaffinity(0)), 4000
    cpus = "".join(
        f'<cpu numaid="{numa}" affinity="{mask(cpu)}"><pci busid="0000:0{numa}:00.0" class="0x020700"/>'
        f'<pci busid="0000:0{numa}:01.0" class="0x030200"/></cpu>'
        for numa, cpu in enumerate((far, near))
    )
    file = tmp_path / "topology.xml"
    file.write_text(f'<system version="1">{cpus}</system>')
    have = [dataclasses.replace(port(f"mlx5_{i}"), pci=f"/sys/devices/pci0000:00/0000:0{i}:00.0") for i in range(2)]
    assert names(rails(have, TOPO_FILE=str(file))) == [("mlx5_1", 1), ("mlx5_0", 1)]
    # For a GPU's data, those beside the GPU.
    assert names(rails(have, gpus=["0000:00:01.0"], TOPO_FILE=str(file))) == [("mlx5_0", 1), ("mlx5_1", 1)]
    with pytest.raises(SettingsError, match="is no topology in NCCL's XML"):
        rails(have, TOPO_FILE=__file__)


def mask(cpu):
    words = f"{1 << cpu:x}".zfill((cpu // 32 + 1) * 8)
    return ",".join(words[i : i + 8] for i in range(0, len(words), 8))
