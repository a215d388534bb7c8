"""Worlds in processes of their own: one host, two network namespaces, and jax.distributed's store."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import uuid

import pytest

HERE = pathlib.Path(__file__).parent
PEER = str(HERE / "world_peer.py")

pytestmark = pytest.mark.multiprocess


def seen_tcp(count, index):
    return [f"{p}/{channel};" for p in range(count) if p != index for channel in (0, 1)]


def test_processes_of_one_host_share_memory(tmp_path, environment, run_together):
    commands = [([sys.executable, PEER, str(tmp_path), str(p), "3"], environment) for p in range(3)]
    outputs = [json.loads(out) for out in run_together(commands)]
    for p, output in enumerate(outputs):
        others = [q for q in range(3) if q != p]
        assert output["transports"] == ["shm"] * 4
        # Each ring carries what its sender wrote: the link's receiver is this process.
        assert output["seen"] == sorted(f"ring to {p} on {channel}" for _ in others for channel in (0, 1))
    assert len({output["host_id"] for output in outputs}) == 1


def test_processes_of_one_host_use_tcp_when_told_to(tmp_path, environment, run_together):
    env = environment | {"JAXRING_SHM_DISABLE": "1", "JAXRING_SOCKET_IFNAME": "lo"}
    commands = [([sys.executable, PEER, str(tmp_path), str(p), "3"], env) for p in range(3)]
    for p, out in enumerate(run_together(commands)):
        assert json.loads(out) | {"host_id": ""} == {
            "host_id": "",
            "transports": ["tcp"] * 4,
            "seen": seen_tcp(3, p),
        }


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)


@pytest.fixture
def namespaces():
    """Two network namespaces joined by a veth pair called jxeth0 in both; [(name, address), ...]."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and iproute2")
    tag = uuid.uuid4().hex[:8]
    names = [f"jx{tag}a", f"jx{tag}b"]
    made = []
    try:
        for name in names:
            if ip("netns", "add", name, check=False).returncode != 0:
                pytest.skip("network namespaces cannot be made here")
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        veth = ("type", "veth", "peer", "name", "jxeth0", "netns", names[1])
        if ip("link", "add", "jxeth0", "netns", names[0], *veth, check=False).returncode != 0:
            pytest.skip("veth devices cannot be made here")
        addresses = [f"10.213.7.{number}" for number in (1, 2)]
        for name, address in zip(names, addresses, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "jxeth0")
            ip("-n", name, "link", "set", "jxeth0", "up")
        yield list(zip(names, addresses, strict=True))
    finally:
        for name in made:
            ip("netns", "delete", name, check=False)


@pytest.mark.netns
def test_two_namespaces_are_two_hosts_and_link_over_tcp(tmp_path, environment, run_together, namespaces):
    env = environment | {"JAXRING_SOCKET_IFNAME": "jxeth"}
    commands = [
        (["ip", "netns", "exec", name, sys.executable, PEER, str(tmp_path), str(p), "2"], env)
        for p, (name, _) in enumerate(namespaces)
    ]
    outputs = [json.loads(out) for out in run_together(commands)]
    assert [output["transports"] for output in outputs] == [["tcp"] * 2] * 2
    assert [output["seen"] for output in outputs] == [seen_tcp(2, 0), seen_tcp(2, 1)]
    assert outputs[0]["host_id"] != outputs[1]["host_id"]


@pytest.mark.netns
def test_two_processes_of_one_namespace_are_one_host(tmp_path, environment, run_together, namespaces):
    name = namespaces[0][0]
    commands = [
        (["ip", "netns", "exec", name, sys.executable, PEER, str(tmp_path), str(p), "2"], environment) for p in range(2)
    ]
    assert [json.loads(out)["transports"] for out in run_together(commands)] == [["shm"] * 2] * 2


@pytest.mark.netns
def test_the_route_to_the_coordinator_picks_the_interface(environment, namespaces, run_together):
    (name, address), (_, other) = namespaces
    code = f"from jaxring.topology import interfaces as i; print(*i.choose('', '{other}:1')[0])"
    (out,) = run_together([(["ip", "netns", "exec", name, sys.executable, "-c", code], environment)])
    assert out.split() == ["jxeth0", address]


JAX_STORE = """
import sys
import jax
from jaxring import _compat
from jaxring.errors import JoinError
from jaxring.world import JaxStore, World
from tests.world.world_fakes import FakeNative

index, address = int(sys.argv[1]), sys.argv[2]
try:
    JaxStore()
    raise AssertionError
except JoinError as error:
    assert "jax.distributed.initialize()" in str(error)
jax.distributed.initialize(address, 2, index)
state = _compat.distributed_state()
assert (state.process, state.processes, state.coordinator) == (index, 2, address)
store = JaxStore()
value = bytes(range(256))
if index == 0:
    store.set("test/key", value)
    try:
        store.set("test/key", value)
        raise AssertionError
    except JoinError as error:
        assert "test/key" in str(error)
assert store.get("test/key", 60) == value
try:
    store.get("test/none", 0.2)
    raise AssertionError
except JoinError as error:
    assert "within 0.2 s" in str(error), error
native = FakeNative()
world = World(store, index, 2, native, 60, coordinator=state.coordinator)
assert world.own.addresses[0][1] == "127.0.0.1"
print(world.link(1 - index, 0))
native.wait_for("shm_finish", 2)
store.set(f"done/{index}", b"1")
store.get(f"done/{1 - index}", 60)
world.close()
"""


def test_the_store_of_jax_distributed(tmp_path, environment, run_together):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    script = tmp_path / "script.py"
    script.write_text(JAX_STORE, encoding="utf-8")
    outputs = run_together([([sys.executable, str(script), str(p), address], environment) for p in range(2)])
    assert [out.split()[-1] for out in outputs] == ["shm", "shm"]
