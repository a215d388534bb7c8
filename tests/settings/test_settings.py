"""The table of JAXRING_* variables."""

from __future__ import annotations

import logging

import pytest

from jaxring.errors import JaxringError, SettingsError
from jaxring.plan.selection import Selection
from jaxring.settings import LEVELS, VARIABLES, Settings, announce, load
from jaxring.settings.page import markdown
from jaxring.settings.ranges import Range
from tests import ROOT


def test_defaults_match_the_table():
    values = load({"PATH": "/bin", "NCCL_ALGO": "Ring", "NCCL_UNKNOWN": "1"})
    assert {v.name.lower(): v.default for v in VARIABLES} == vars(values)
    assert (values.timeout, values.nsocks, values.slot_bytes) == (300.0, 2, 262144)
    # A wait is told of before it fails, and a peer that cannot be reached is the error before a collective is late.
    assert 0 < values.stall_warning < values.join_timeout <= values.timeout / 4


READ = {
    "HOSTID": ("h", "h"),
    "INSTALL": ("Whole", "whole"),
    "TIMEOUT": ("2.5", 2.5),
    "JOIN_TIMEOUT": ("7", 7.0),
    "STALL_WARNING": ("4", 4.0),
    "LINK_TIMEOUT": ("5", 5.0),
    "SHM_DISABLE": ("1", True),
    "NET": ("IB", "ib"),
    "SOCKET_IFNAME": ("^lo,docker", "^lo,docker"),
    "PORT_RANGE": ("20000 - 20009", "20000-20009"),
    "SOCKET_CONGESTION": ("reno", "reno"),
    "NSOCKS": ("4", 4),
    "BUFFSIZE": ("64K", 65536),
    "IB_HCA": ("mlx5_0:1", "mlx5_0:1"),
    "IB_GID_INDEX": ("3", 3),
    "IB_TIMEOUT": ("14", 14),
    "IB_RETRY_CNT": ("5", 5),
    "IB_QPS_PER_CONNECTION": ("2", 2),
    "NET_GDR_LEVEL": ("PHB", "phb"),
    "TOPO_FILE": ("/a.xml", "/a.xml"),
    "ALGO": ("ring", Selection(("ring",))),
    "PROTO": ("^LL", Selection(but=("ll",))),
    "NCHANNELS": ("2-8", Range(2, 8)),
    "FUSION_BYTES": ("1 KiB", 1024),
    "THREADS": ("3", 3),
    "PATIENCE": ("2000", 2000),
    "P2P": ("Staged, shared", ("staged", "shared")),
    "CUDA_TRAP": ("0", False),
    "CUDA_BULK_BYTES": ("65536", 65536),
    "DEBUG": ("info", "INFO"),
    "TRACE_DIR": ("/traces", "/traces"),
    "SAVE_OPERANDS": ("4096", 4096),
    "CHECKSUM": ("1", "messages"),
    "NAN_CHECK": ("warn", "warn"),
    "FAULTS": ("seed=3,drop=0.5, delay_us=20", ("seed=3", "drop=0.5", "delay_us=20")),
}


def test_variables_are_read():
    values = load({"JAXRING_" + name: text for name, (text, _) in READ.items()})
    assert values == Settings(**{name.lower(): value for name, (_, value) in READ.items()})
    assert all(getattr(values, v.name.lower()) != v.default for v in VARIABLES if v.name in READ)
    assert values.worker_threads == 3


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("+nvls", Selection(also=("nvls",))),
        ("^pxn, tree+copy_engine,NVLS", Selection(but=("tree", "pxn"), also=("copy_engine", "nvls"))),
    ],
)
def test_a_list_may_add_to_what_is_chosen_from(text, selection):
    algo = load({"JAXRING_ALGO": text}).algo
    assert algo == selection
    assert load({"JAXRING_ALGO": str(algo)}).algo == algo


@pytest.mark.parametrize(
    ("text", "channels"),
    [("", (1, 16)), ("4", (4, 4)), ("2-8", (2, 8)), ("2-", (2, 16)), ("-8", (1, 8)), ("32-", (32, 32))],
)
def test_a_range_may_be_open(text, channels):
    values = load({"JAXRING_NCHANNELS": text})
    assert values.channels == channels
    assert load({"JAXRING_NCHANNELS": str(values.nchannels)}) == values


@pytest.mark.parametrize(
    ("text", "p2p"),
    [
        ("none", ("none",)),
        ("shared", ("direct", "shared")),
        ("shared,staged", ("staged", "shared")),
        ("staged,shared,shared", ("staged", "shared")),
    ],
)
def test_gpus_may_be_shared_with_each_way_to_reach_memory(p2p, text):
    values = load({"JAXRING_P2P": text})
    assert values.p2p == p2p
    assert load({"JAXRING_P2P": ",".join(p2p)}) == values


@pytest.mark.parametrize("text", ["direct,none", "mapped", "shared,mapped"])
def test_there_is_one_way_to_reach_memory(text):
    with pytest.raises(SettingsError, match=r"JAXRING_P2P.*direct, staged or none, and shared"):
        load({"JAXRING_P2P": text})


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
        ("BUFFSIZE", "5K"),
        ("BUFFSIZE", "1T"),
        ("FUSION_BYTES", "4Q"),
        ("FUSION_BYTES", "9" * 5000),
        ("ALGO", "ring tree"),
        ("ALGO", "star"),
        ("ALGO", "ring+nvls"),
        ("ALGO", "^nvls+nvls"),
        ("ALGO", "+"),
        ("PROTO", "+ll128"),
        ("NCHANNELS", "0-4"),
        ("NCHANNELS", "9-4"),
        ("NCHANNELS", "-65"),
        ("NCHANNELS", "-"),
        ("NCHANNELS", "two"),
        ("PORT_RANGE", "20000"),
        ("PORT_RANGE", "9-4"),
        ("PORT_RANGE", "0-9"),
        ("PORT_RANGE", "9-65536"),
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
    }
    values = load(environ)
    assert (values.ib_hca, values.socket_ifname, values.net) == ("mlx5_1", "ib", "")
    assert (values.slot_bytes, values.net_gdr_level, values.proto) == (1 << 20, "sys", Selection())
    with caplog.at_level(logging.INFO, "jaxring"):
        announce(environ, "1.2.3")
    assert "JAXRING_IB_HCA is taken from NCCL_IB_HCA: mlx5_1" in caplog.text
    assert (
        "NCCL_NET=AWS Libfabric is not taken for JAXRING_NET, which must be IB, Socket, TLS or plugin:NAME"
        in caplog.text
    )
    assert "SOCKET_IFNAME" not in caplog.text


def test_operands_are_saved_only_where_a_folder_is_named():
    with pytest.raises(SettingsError, match="JAXRING_SAVE_OPERANDS saves in JAXRING_TRACE_DIR, which is not set"):
        load({"JAXRING_SAVE_OPERANDS": "9"})


def test_there_are_few():
    """A further one takes the place of another: what a system, NCCL or one of these says is not said once more."""
    assert len(VARIABLES) <= 35


def test_the_documented_table_is_this_one():
    """`jaxring doctor --settings` prints it, and `make format` writes it into the page."""
    assert (ROOT / "docs" / "settings.md").read_text().endswith("\n\n" + markdown())


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
