"""Settings of XLA under which results on GPUs would be wrong are errors that name them."""

from __future__ import annotations

import types

import pytest

from jaxring.errors import SettingsError
from jaxring.runtime.cuda import service, xla_settings
from jaxring.runtime.cuda.communicators import Devices

SCHEDULING = "--xla_gpu_command_buffer_scheduling_mode="
UPDATES = "--xla_gpu_command_buffer_update_mode="


@pytest.mark.parametrize("mode", ["CONCURRENT", "concurrent", "CONCURRENT_REGIONS"])
@pytest.mark.parametrize(("processes", "p2p"), [(1, "direct"), (2, "staged")])
def test_concurrent_graphs_are_refused(mode, processes, p2p):
    with pytest.raises(SettingsError, match=f"{SCHEDULING}{mode}: .*one order on each device"):
        xla_settings.check({"XLA_FLAGS": f"--xla_dump_to=/x {SCHEDULING}LHS {SCHEDULING}{mode}"}, processes, 1, p2p)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"XLA_FLAGS": f"{UPDATES}NEVER_UPDATE"}, f"{UPDATES}NEVER_UPDATE"),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "vmm"}, "XLA_PYTHON_CLIENT_ALLOCATOR is vmm"),
        ({"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, "XLA_PYTHON_CLIENT_ALLOCATOR is platform"),
    ],
)
def test_memory_that_moves_behind_its_address_is_refused_where_it_is_shared(environment, named):
    with pytest.raises(SettingsError, match=f"{named}: .*JAXRING_P2P=staged"):
        xla_settings.check(environment, 2, 1, "direct")
    for processes, p2p in ((1, "direct"), (1, "staged"), (2, "direct"), (2, "staged")):
        with pytest.raises(SettingsError, match=f"{named}: .*process for each GPU, or set JAXRING_P2P=none"):
            xla_settings.check(environment, processes, 2, p2p)
    for processes, gpus, p2p in ((2, 1, "staged"), (2, 1, "none"), (1, 1, "direct"), (1, 2, "none"), (2, 2, "none")):
        xla_settings.check(environment, processes, gpus, p2p)


@pytest.mark.parametrize(
    "flags",
    ["", "--xla_gpu_enable_command_buffer=", f"{SCHEDULING}LHS", f"{SCHEDULING}SERIALIZE {UPDATES}ALWAYS_UPDATE"],
)
def test_others_are_none_of_its_business(flags, tmp_path):
    xla_settings.check({"XLA_FLAGS": flags, "XLA_PYTHON_CLIENT_ALLOCATOR": "bfc"}, 2, 2, "direct")
    xla_settings.check({"XLA_FLAGS": str(tmp_path / "absent")}, 2, 2, "direct")


def test_flags_in_a_file_count(tmp_path):
    (tmp_path / "flags").write_text(f"--xla_dump_to=/x\n{SCHEDULING}CONCURRENT\n")
    with pytest.raises(SettingsError, match="CONCURRENT"):
        xla_settings.check({"XLA_FLAGS": str(tmp_path / "flags")}, 1, 1, "direct")


def test_the_engine_does_not_start_under_them(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"{SCHEDULING}CONCURRENT")
    monkeypatch.setattr(service, "_started", None)
    with pytest.raises(SettingsError, match="CONCURRENT"):
        service.ensure_started(types.SimpleNamespace(), lambda native: Devices("cuda", {0: 0}, {0: 0}))


def test_the_engine_counts_the_gpus_of_its_process(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", f"{UPDATES}NEVER_UPDATE")
    monkeypatch.setattr(service, "_started", None)
    with pytest.raises(SettingsError, match="use a process for each GPU"):
        service.ensure_started(types.SimpleNamespace(), lambda native: Devices("cuda", {}, {0: 0, 1: 1}))
