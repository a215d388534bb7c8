"""XLA's settings under which the CUDA engine would give wrong results without an error: they are refused by name."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

from jaxring.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SCHEDULING = "xla_gpu_command_buffer_scheduling_mode"
_UPDATES = "xla_gpu_command_buffer_update_mode"
_ALLOCATOR = "XLA_PYTHON_CLIENT_ALLOCATOR"
# Under these XLA runs the commands of a CUDA graph one after another.
_IN_ORDER = ("LHS", "SERIALIZE")


def check(environment: Mapping[str, str], processes: int, gpus: int, p2p: str) -> None:
    """SettingsError for settings of XLA that jaxring's collectives on GPUs cannot work with.

    ``gpus``: how many this process has. ``p2p``: the first word of the setting JAXRING_P2P. Options that a program
    gives to the compiler itself are not seen here.
    """
    flags = _flags(environment.get("XLA_FLAGS", ""))
    mode = flags.get(_SCHEDULING, _IN_ORDER[0])
    if mode.upper() not in _IN_ORDER:
        raise SettingsError(
            f"XLA_FLAGS has --{_SCHEDULING}={mode}: XLA would then run collectives of one graph at the same time, and "
            f"jaxring's need one order on each device. Leave it out, or use {' or '.join(_IN_ORDER)}."
        )
    if gpus > 1 and p2p != "none":  # a GPU is given access to memory of the process's others once, wherever it is used
        remedy = "Leave it out, use a process for each GPU, or set JAXRING_P2P=none."
    elif processes > 1 and p2p == "direct":
        remedy = "Leave it out, or set JAXRING_P2P=staged, with which XLA's buffers are not shared."
    else:
        return  # no other GPU addresses XLA's memory
    moves = "XLA would then put other memory behind addresses that other GPUs use"
    updates = flags.get(_UPDATES, "ALWAYS_UPDATE")
    if updates.upper() != "ALWAYS_UPDATE":
        raise SettingsError(f"XLA_FLAGS has --{_UPDATES}={updates}: {moves}. {remedy}")
    allocator = environment.get(_ALLOCATOR, "").lower()
    if allocator == "vmm":
        raise SettingsError(f"{_ALLOCATOR} is vmm: {moves}. {remedy}")
    if allocator == "platform":  # XLA calls no handler again for a graph whose addresses it has captured before
        gives = "XLA would then give memory back to the driver that other GPUs address"
        raise SettingsError(f"{_ALLOCATOR} is platform: {gives}. {remedy}")


def _flags(text: str) -> dict[str, str]:
    """XLA_FLAGS as XLA reads it: flags, of which the last of a name counts, or the name of a file with flags."""
    text = text.strip()
    if text and not text.startswith("-"):
        try:
            text = pathlib.Path(text).read_text()
        except OSError:
            return {}  # XLA says so itself
    found = {}
    for word in text.split():
        name, _, value = word.lstrip("-").partition("=")
        found[name] = value.strip("'\"")
    return found
