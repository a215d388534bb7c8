"""Reads profiles: those that come with the package, and files that `jaxring tune` has written."""

from __future__ import annotations

import dataclasses
import functools
import importlib.resources
import math
import tomllib
from typing import Any

from jaxring.plan.collectives import COLLECTIVES
from jaxring.plan.profile import LINKS, Constants, Link, Measured, Profile
from jaxring.plan.protocols import PROTOCOLS

MAX_BYTES = 1 << 20
_MOST = 1e12


def parse(text: str) -> Profile:
    """The profile of a TOML text. Raises ValueError that names the table and the field that is wrong."""
    if len(text) > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} characters, which no profile needs")
    raw = tomllib.loads(text)
    links = {name: Link(**_numbers(Link, raw.pop(name, None), name)) for name in LINKS}
    constants = Constants(**_numbers(Constants, raw.pop("constants", None), "constants"))
    tables = raw.pop("measured", [])
    if not isinstance(tables, list):
        raise ValueError("measured is not a list of tables")
    measured = tuple(_measured(each, f"measured[{number}]") for number, each in enumerate(tables))
    kind, source = raw.pop("kind", None), raw.pop("source", None)
    if not isinstance(kind, str) or not isinstance(source, str):
        raise ValueError("kind or source is no text")
    if raw:
        raise ValueError(f"a profile has no {', '.join(map(ascii, sorted(raw)))[:200]}")
    return Profile(kind, source, **links, constants=constants, measured=measured)


def _fields(record: type[Any], raw: object, where: str) -> dict[str, Any]:
    """The fields of a table, which are those of the record."""
    names = {field.name for field in dataclasses.fields(record)}
    if not isinstance(raw, dict):
        raise ValueError(f"{where} is no table")
    if raw.keys() != names:
        raise ValueError(f"fields of {where} differ: {', '.join(map(ascii, sorted(raw.keys() ^ names)))[:200]}")
    return raw


def _numbers(record: type[Any], raw: object, where: str) -> dict[str, Any]:
    table = _fields(record, raw, where)
    kinds = {field.name: field.type for field in dataclasses.fields(record)}
    return {name: _number(table[name], kinds[name] == "int", f"{where}.{name}") for name in kinds}


def _number(value: object, whole: bool, where: str) -> float:
    allowed = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed) or not 0 <= value <= _MOST or not math.isfinite(value):
        raise ValueError(f"{where} is not {'an integer' if whole else 'a number'} from 0 to {_MOST:g}")
    return value if whole else float(value)


def _measured(raw: object, where: str) -> Measured:
    table = _fields(Measured, raw, where)
    for name, known in (("collective", COLLECTIVES), ("protocol", PROTOCOLS)):
        if table[name] not in known:
            raise ValueError(f"{where}.{name} is none of {', '.join(known)}")
    if not isinstance(table["algorithm"], str):
        raise ValueError(f"{where}.algorithm is no text")
    nbytes, us = table["nbytes"], table["us"]
    if not isinstance(nbytes, list) or not isinstance(us, list) or not 0 < len(nbytes) == len(us):
        raise ValueError(f"{where} has not as many times as sizes, or none")
    sizes = tuple(int(_number(each, True, f"{where}.nbytes")) for each in nbytes)
    times = tuple(_number(each, False, f"{where}.us") for each in us)
    if sizes != tuple(sorted(set(sizes))) or min(sizes) < 1 or min(times) <= 0:
        raise ValueError(f"{where} has sizes that do not ascend from 1, or times that are not above 0")
    counts = {name: int(_number(table[name], True, f"{where}.{name}")) for name in ("domains", "width", "hosts")}
    return Measured(table["collective"], table["algorithm"], table["protocol"], **counts, nbytes=sizes, us=times)


@functools.cache
def builtin(name: str) -> Profile:
    """One of the profiles that come with the package."""
    file = importlib.resources.files("jaxring.plan") / "profiles" / f"{name}.toml"
    return parse(file.read_text(encoding="utf-8"))


COMMODITY = builtin("commodity")
