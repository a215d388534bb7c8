"""The table of JAXRING_* variables."""

from __future__ import annotations

import logging

import pytest

from jaxring.errors import JaxringError, SettingsError
from jaxring.settings import LEVELS, VARIABLES, Settings, configure_logging, load


def test_defaults_match_the_table():
    values = load({"PATH": "/bin", "NCCL_DEBUG": "INFO"})
    assert {v.name.lower(): v.default for v in VARIABLES} == vars(values)
    assert (values.timeout, values.nsocks, values.buffsize) == (300.0, 2, 131072)


def test_every_variable_is_read():
    values = load(
        {
            "JAXRING_HOSTID": "h",
            "JAXRING_SOCKET_IFNAME": "^lo,docker",
            "JAXRING_SHM_DISABLE": "1",
            "JAXRING_NET": "IB",
            "JAXRING_IB_DISABLE": "1",
            "JAXRING_IB_HCA": "mlx5_0:1",
            "JAXRING_IB_GID_INDEX": "3",
            "JAXRING_IB_TIMEOUT": "14",
            "JAXRING_IB_RETRY_CNT": "5",
            "JAXRING_IB_QPS_PER_CONNECTION": "2",
            "JAXRING_TIMEOUT": "2.5",
            "JAXRING_JOIN_TIMEOUT": "7",
            "JAXRING_THREADS": "3",
            "JAXRING_NSOCKS": "4",
            "JAXRING_BUFFSIZE": "65536",
            "JAXRING_HUGE_PAGES": "0",
            "JAXRING_ALGO": "ring",
            "JAXRING_PROTO": "^LL",
            "JAXRING_FUSION_BYTES": "1024",
            "JAXRING_P2P_DISABLE": "1",
            "JAXRING_LOCAL_REGISTER": "0",
            "JAXRING_MAX_NCHANNELS": "8",
            "JAXRING_NTHREADS": "256",
            "JAXRING_CUDA_TRAP": "0",
            "JAXRING_DEBUG": "info",
        }
    )
    rdma = ("ib", True, "mlx5_0:1", 3, 14, 5, 2)
    text = ("h", "^lo,docker", True, *rdma, 2.5, 7.0, 3, 4, 65536, False, ("ring",), ("memory", "simple"))
    assert values == Settings(*text, 1024, True, False, 8, 256, False, "INFO")
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
        ("PROTO", "^ll,memory,simple"),
        ("HOSTID", "x" * 300),
        ("DEBUG", "LOUD"),
    ],
)
def test_a_bad_value_names_its_variable(name, text):
    with pytest.raises(SettingsError, match=f"JAXRING_{name} must be "):
        load({"JAXRING_" + name: text})


def test_the_fingerprint_holds_what_must_agree_and_nothing_else():
    base = load({}).fingerprint()
    assert load({"JAXRING_TIMEOUT": "1", "JAXRING_HOSTID": "a", "JAXRING_DEBUG": "WARN"}).fingerprint() == base
    for name, text in (("ALGO", "ring"), ("BUFFSIZE", "4096"), ("NSOCKS", "1"), ("SHM_DISABLE", "1"), ("PROTO", "ll")):
        assert f"{name}={text}" in load({"JAXRING_" + name: text}).fingerprint()
        assert f"{name}={text}" not in base


@pytest.mark.parametrize("level", LEVELS)
def test_debug_sets_the_level_and_logs_the_version(level, caplog):
    logger = logging.getLogger("jaxring")
    before = logger.level
    try:
        configure_logging(load({"JAXRING_DEBUG": level}), "1.2.3")
        assert logger.level == LEVELS[level]
        assert "1.2.3" in caplog.text
    finally:
        logger.setLevel(before)
