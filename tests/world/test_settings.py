"""The table of JAXRING_* variables."""

from __future__ import annotations

import logging
import pathlib

import pytest

from jaxring.errors import JaxringError, SettingsError
from jaxring.plan.selection import Selection
from jaxring.settings import LEVELS, VARIABLES, Settings, announce, load
from jaxring.settings.variables import markdown


def test_defaults_match_the_table():
    values = load({"PATH": "/bin", "NCCL_ALGO": "Ring", "NCCL_UNKNOWN": "1"})
    assert {v.name.lower(): v.default for v in VARIABLES} == vars(values)
    assert (values.timeout, values.nsocks, values.slot_bytes) == (300.0, 2, 262144)


def test_every_variable_is_read():
    values = load(
        {
            "JAXRING_HOSTID": "h",
            "JAXRING_SOCKET_IFNAME": "^lo,docker",
            "JAXRING_SOCKET_CONGESTION": "reno",
            "JAXRING_SHM_DISABLE": "1",
            "JAXRING_TLS": "1",
            "JAXRING_NET": "IB",
            "JAXRING_NET_PLUGIN": "ofi",
            "JAXRING_IB_DISABLE": "1",
            "JAXRING_IB_HCA": "mlx5_0:1",
            "JAXRING_IB_GID_INDEX": "3",
            "JAXRING_IB_TIMEOUT": "14",
            "JAXRING_IB_RETRY_CNT": "5",
            "JAXRING_IB_QPS_PER_CONNECTION": "2",
            "JAXRING_NET_GDR_LEVEL": "PHB",
            "JAXRING_TOPO_FILE": "/a.xml",
            "JAXRING_TOPO_DUMP_FILE": "/b.xml",
            "JAXRING_PXN_DISABLE": "1",
            "JAXRING_TIMEOUT": "2.5",
            "JAXRING_JOIN_TIMEOUT": "7",
            "JAXRING_STALL_WARNING": "4",
            "JAXRING_LINK_TIMEOUT": "5",
            "JAXRING_THREADS": "3",
            "JAXRING_PATIENCE": "2000",
            "JAXRING_NSOCKS": "4",
            "JAXRING_BUFFSIZE": "65536",
            "JAXRING_KEEP_BYTES": "4096",
            "JAXRING_HUGE_PAGES": "0",
            "JAXRING_ALGO": "ring",
            "JAXRING_PROTO": "^LL",
            "JAXRING_FUSION_BYTES": "1024",
            "JAXRING_P2P_DISABLE": "1",
            "JAXRING_NVLS_ENABLE": "1",
            "JAXRING_LOCAL_REGISTER": "0",
            "JAXRING_MIN_NCHANNELS": "2",
            "JAXRING_MAX_NCHANNELS": "8",
            "JAXRING_NTHREADS": "256",
            "JAXRING_CUDA_TRAP": "0",
            "JAXRING_CUDA_BULK_BYTES": "65536",
            "JAXRING_TRACE_DIR": "/traces",
            "JAXRING_SAVE_OPERANDS": "4096",
            "JAXRING_CHECKSUM": "1",
            "JAXRING_NAN_CHECK": "warn",
            "JAXRING_FAULTS": "seed=3,drop=0.5, delay_us=20",
            "JAXRING_DEBUG": "info",
        }
    )
    rdma = ("ib", "ofi", True, "mlx5_0:1", 3, 14, 5, 2)
    topology = ("phb", "/a.xml", "/b.xml", True)
    protocols = Selection(but=("ll",))
    faults = ("seed=3", "drop=0.5", "delay_us=20")
    times = (2.5, 7.0, 4.0, 5.0)
    engine = (3, 2000, 4, 65536, 4096, False, Selection(("ring",)), protocols)
    text = ("h", "^lo,docker", "reno", True, True, *rdma, *topology, *times, *engine)
    rest = (2, 8, 256, False, 65536, "/traces", 4096, True, "warn", faults, "INFO")
    assert values == Settings(*text, 1024, True, 1, False, *rest)
    assert values.worker_threads == 3


def test_an_empty_variable_is_unset():
    assert load({"JAXRING_NSOCKS": " "}).nsocks == 2


def test_an_unknown_name_is_an_error_with_the_nearest_one():
    with pytest.raises(SettingsError, match=r"JAXRING_BUFSIZE; the nearest one is JAXRING_BUFFSIZE"):
        load({"JAXRING_BUFSIZE": "1"})
    assert issubclass(SettingsError, JaxringError)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("SHM_DISABLE", "yes"),
        ("TIMEOUT", "0"),
        ("TIMEOUT", "nan"),
        ("TIMEOUT", "inf"),
        ("JOIN_TIMEOUT", "soon"),
        ("THREADS", "-1"),
        ("NSOCKS", "0"),
        ("NSOCKS", "9" * 5000),
        ("BUFFSIZE", "5000"),
        ("ALGO", "ring tree"),
        ("ALGO", "star"),
        ("PROTO", "^ll,memory,simple,ll128"),
        ("HOSTID", "x" * 300),
        ("FAULTS", "drop"),
        ("FAULTS", "drop=2"),
        ("FAULTS", "seed=0.5"),
        ("FAULTS", "lose=0.1"),
        ("DEBUG", "LOUD"),
    ],
)
def test_a_bad_value_names_its_variable(name, text):
    with pytest.raises(SettingsError, match=f"JAXRING_{name} must be "):
        load({"JAXRING_" + name: text})


def test_the_fingerprint_holds_what_must_agree_and_nothing_else():
    base = load({}).fingerprint()
    assert load({"JAXRING_TIMEOUT": "1", "JAXRING_HOSTID": "a", "JAXRING_DEBUG": "WARN"}).fingerprint() == base
    for name, text in (("ALGO", "ring"), ("BUFFSIZE", "65536"), ("NSOCKS", "1"), ("SHM_DISABLE", "1"), ("PROTO", "ll")):
        assert f"{name}={text}" in load({"JAXRING_" + name: text}).fingerprint()
        assert f"{name}={text}" not in base


def test_what_nccl_calls_the_same_is_read_where_ours_is_not_set(caplog):
    environ = {
        "NCCL_IB_HCA": "mlx5_1",
        "NCCL_SOCKET_IFNAME": "eth",
        "JAXRING_SOCKET_IFNAME": "ib",
        "NCCL_NET": "AWS Libfabric",
        "NCCL_BUFFSIZE": "8388608",
        "NCCL_NET_GDR_LEVEL": "SYS",
        # These do not mean the same: NCCL's lists know nothing of memory and of our algorithms.
        "NCCL_PROTO": "LL128",
        "NCCL_TOPO_DUMP_FILE": "/x",
    }
    values = load(environ)
    assert (values.ib_hca, values.socket_ifname, values.net) == ("mlx5_1", "ib", "")
    assert (values.slot_bytes, values.net_gdr_level, values.proto, values.topo_dump_file) == (
        1 << 20,
        "sys",
        Selection(),
        "",
    )
    with caplog.at_level(logging.INFO, "jaxring"):
        announce(environ, "1.2.3")
    assert "JAXRING_IB_HCA is taken from NCCL_IB_HCA: mlx5_1" in caplog.text
    assert "NCCL_NET=AWS Libfabric is not taken for JAXRING_NET, which must be ib or socket" in caplog.text
    assert "SOCKET_IFNAME" not in caplog.text


def test_limits_that_cross_are_an_error():
    with pytest.raises(SettingsError, match="NCCL_MIN_NCHANNELS is 9, which is more than JAXRING_MAX_NCHANNELS: 4"):
        load({"NCCL_MIN_NCHANNELS": "9", "JAXRING_MAX_NCHANNELS": "4"})
    with pytest.raises(SettingsError, match="JAXRING_SAVE_OPERANDS saves in JAXRING_TRACE_DIR, which is not set"):
        load({"JAXRING_SAVE_OPERANDS": "9"})


def test_the_documented_table_is_this_one():
    """`jaxring doctor --settings` prints it."""
    assert markdown() in (pathlib.Path(__file__).parents[2] / "docs" / "settings.md").read_text()


@pytest.mark.parametrize("level", LEVELS)
def test_debug_sets_the_level_and_logs_the_version(level, caplog):
    logger = logging.getLogger("jaxring")
    before = logger.level
    try:
        announce({"JAXRING_DEBUG": level}, "1.2.3")
        assert logger.level == LEVELS[level]
        assert "1.2.3" in caplog.text
    finally:
        logger.setLevel(before)
