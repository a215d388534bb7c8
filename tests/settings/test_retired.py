"""Retired names: they say what they said, in the setting that took their place, and warn."""

from __future__ import annotations

import logging

import pytest

from jaxring.cli import main
from jaxring.errors import SettingsError
from jaxring.plan.selection import Selection
from jaxring.settings import VARIABLES, announce, examine, load
from jaxring.settings.ranges import Range
from jaxring.settings.retired import RETIRED, warnings


def change(**environ: str) -> dict[str, object]:
    """The settings that the environment changes."""
    values, default = load(environ), load({})
    return {name: value for name, value in vars(values).items() if value != getattr(default, name)}


@pytest.mark.parametrize(
    ("name", "text", "now"),
    [
        ("TLS", "1", {"net": "tls"}),
        ("TLS", "0", {}),
        ("NET_PLUGIN", "ofi", {"net": "plugin:ofi"}),
        ("NET_PLUGIN", "none", {}),
        ("IB_DISABLE", "1", {"net": "socket"}),
        ("IB_DISABLE", "0", {}),
        ("PXN_DISABLE", "1", {"algo": Selection(but=("pxn",))}),
        ("NVLS_ENABLE", "0", {"algo": Selection(but=("nvls",))}),
        ("NVLS_ENABLE", "1", {"algo": Selection(also=("nvls",))}),
        ("NVLS_ENABLE", "2", {}),
        ("P2P_DISABLE", "1", {"p2p": ("none",)}),
        ("P2P_DISABLE", "0", {}),
        ("LOCAL_REGISTER", "0", {"p2p": ("staged",)}),
        ("LOCAL_REGISTER", "1", {}),
        ("MIN_NCHANNELS", "2", {"nchannels": Range(2)}),
        ("MAX_NCHANNELS", "8", {"nchannels": Range(None, 8)}),
    ],
)
def test_a_retired_name_is_translated(name, text, now):
    assert change(**{f"JAXRING_{name}": text}) == now
    old = next(old for old in RETIRED if old.name == name)
    # NCCL's variable of that name says the same, where there is one.
    assert change(**{f"NCCL_{name}": text}) == (now if old.nccl else {})
    assert examine({f"JAXRING_{name}": text})[1] == []


def test_no_retired_name_is_one_of_today():
    assert not {old.name for old in RETIRED} & {v.name for v in VARIABLES}
    assert {old.setting for old in RETIRED} - {""} <= {v.name for v in VARIABLES}


def test_one_without_a_successor_changes_nothing_and_says_so():
    for old in RETIRED:
        if not old.setting:
            environ = {f"JAXRING_{old.name}": "1", f"NCCL_{old.name}": "1"}
            assert change(**environ) == {}
            assert warnings(environ) == [f"JAXRING_{old.name} goes with the next release: {old.instead}."]


def test_each_is_warned_of_with_what_to_set(caplog):
    environ = {"JAXRING_TLS": "1", "JAXRING_IB_DISABLE": "0", "NCCL_NET_PLUGIN": "ofi"}
    assert warnings(environ) == [
        "JAXRING_TLS goes with the next release: set JAXRING_NET=TLS instead.",
        "JAXRING_IB_DISABLE goes with the next release: unset it, it says what is the default.",
    ]
    with caplog.at_level(logging.INFO, "jaxring"):
        announce(environ, "1.2.3")
    for sentence in warnings(environ):
        assert caplog.text.count(sentence) == 1
    assert "NCCL_NET_PLUGIN" not in caplog.text  # ours comes first
    announce({"NCCL_NET_PLUGIN": "ofi", "NCCL_NET": "AWS Libfabric"}, "1.2.3")
    assert "NCCL_NET=AWS Libfabric is not taken for JAXRING_NET" in caplog.text


def test_nccl_names_alone_are_no_reason_to_warn(caplog):
    with caplog.at_level(logging.INFO, "jaxring"):
        announce({"NCCL_IB_DISABLE": "1"}, "1.2.3")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("INFO", "JAXRING_NET is taken from NCCL_IB_DISABLE: socket")
    ]


def test_what_is_wrong_with_one_is_said():
    with pytest.raises(SettingsError, match="JAXRING_TLS must be 0 or 1, and it is 'yes'"):
        load({"JAXRING_TLS": "yes"})
    found, wrong = examine({"NCCL_IB_DISABLE": "yes"})
    assert (wrong, found["NET"].value) == ([], "")
    assert found["NET"].ignored == "NCCL_IB_DISABLE=yes is not taken for JAXRING_NET, which must be 0 or 1"


@pytest.mark.parametrize("net", ["Socket", "IB", "plugin:ofi"])
def test_one_that_contradicts_the_setting_is_an_error(net):
    """Encryption that a job asked for is not dropped."""
    with pytest.raises(SettingsError, match=r"JAXRING_TLS=1 means JAXRING_NET=TLS, and JAXRING_NET is .*: unset"):
        load({"JAXRING_NET": net, "JAXRING_TLS": "1"})
    assert load({"JAXRING_NET": "TLS", "JAXRING_TLS": "1"}).tls
    assert load({"JAXRING_NET": net, "JAXRING_TLS": "0"}) == load({"JAXRING_NET": net})


def test_who_comes_first():
    # Among retired names: encryption, then the plugin, which has always taken RDMA's place.
    assert load({"JAXRING_TLS": "1", "JAXRING_IB_DISABLE": "1", "JAXRING_NET_PLUGIN": "x"}).tls
    assert load({"NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "x"}).plugin == "x"
    assert load({"JAXRING_P2P_DISABLE": "1", "JAXRING_LOCAL_REGISTER": "0"}).p2p == ("none",)
    # Ours before NCCL's, whichever of the two is retired.
    assert load({"JAXRING_IB_DISABLE": "1", "NCCL_NET": "IB"}).net == "socket"
    assert load({"JAXRING_NET": "IB", "NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "x"}).net == "ib"
    # And as in NCCL the transport's name before the plugin's file.
    assert load({"NCCL_NET": "Socket", "NCCL_NET_PLUGIN": "x"}).net == "socket"


def test_what_a_list_leaves_open_is_added():
    def algo(**environ):
        return str(load(environ).algo)

    assert algo(JAXRING_PXN_DISABLE="1", JAXRING_NVLS_ENABLE="1") == "^pxn+nvls"
    assert algo(JAXRING_ALGO="^ring", NCCL_PXN_DISABLE="1") == algo(JAXRING_ALGO="^ring,pxn")
    assert algo(JAXRING_ALGO="^tree", JAXRING_PXN_DISABLE="1") == algo(JAXRING_ALGO="^tree,pxn")
    found, wrong = examine({"JAXRING_ALGO": "^tree", "NCCL_NVLS_ENABLE": "1"})
    assert (str(found["ALGO"].value), wrong) == ("^tree+nvls", [])
    assert found["ALGO"].name == "JAXRING_ALGO and NCCL_NVLS_ENABLE"
    # What it says stands against NCCL's, and a retired name of ours must not contradict it.
    assert algo(JAXRING_ALGO="+nvls", NCCL_NVLS_ENABLE="0") == "+nvls"
    assert algo(JAXRING_ALGO="ring,pxn", NCCL_PXN_DISABLE="1") == "ring,pxn"
    assert algo(JAXRING_ALGO="ring", JAXRING_PXN_DISABLE="1") == "ring"
    for name, text, setting in (("PXN", "1", "ring,pxn"), ("PXN", "1", "pxn"), ("NVLS", "0", "^tree+nvls")):
        old = f"JAXRING_{name}_{'DISABLE' if name == 'PXN' else 'ENABLE'}"
        with pytest.raises(SettingsError, match=f"{old}={text} means JAXRING_ALGO=.*: unset {old}"):
            algo(**{"JAXRING_ALGO": setting, "JAXRING_IB_DISABLE": "1", old: text})


def test_the_ends_of_a_range_are_put_together():
    assert load({"JAXRING_MIN_NCHANNELS": "32", "NCCL_MAX_NCHANNELS": "64"}).channels == (32, 64)
    assert load({"JAXRING_NCHANNELS": "4-32", "NCCL_MAX_NCHANNELS": "8"}).channels == (4, 32)
    with pytest.raises(SettingsError, match="JAXRING_MAX_NCHANNELS=4 leaves nothing of JAXRING_MIN_NCHANNELS"):
        load({"JAXRING_MIN_NCHANNELS": "9", "JAXRING_MAX_NCHANNELS": "4"})
    with pytest.raises(SettingsError, match=r"JAXRING_MAX_NCHANNELS=8 means .*=-8, and .* is 2-4: unset"):
        load({"JAXRING_NCHANNELS": "2-4", "JAXRING_MAX_NCHANNELS": "8"})
    # It was written for NCCL, so it is no error.
    found, wrong = examine({"NCCL_MIN_NCHANNELS": "9", "JAXRING_MAX_NCHANNELS": "4"})
    assert (wrong, str(found["NCHANNELS"].value)) == ([], "-4")
    assert found["NCHANNELS"].ignored == "NCCL_MIN_NCHANNELS=9 is not taken: it contradicts JAXRING_MAX_NCHANNELS"


def test_doctor_finds_them(monkeypatch, capsys):
    monkeypatch.setenv("JAXRING_IB_DISABLE", "1")
    main(["doctor"])  # 1 where this very host has a grave lack
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert ["JAXRING_NET", "socket", "JAXRING_IB_DISABLE"] in rows
    assert "JAXRING_IB_DISABLE goes with the next release" in out
    assert main(["doctor", "--settings"]) == 0
    assert "\n| IB_DISABLE° | NET=Socket |\n" in capsys.readouterr().out
