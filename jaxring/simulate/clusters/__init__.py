"""Clusters described in TOML files beside this module, one file each, every number with its source; and networks that
files of others describe."""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import tomllib
from typing import Any

from jaxring.plan.protocols import MESSAGES
from jaxring.simulate.cluster import Cluster
from jaxring.simulate.described import WHOLE, Described
from jaxring.simulate.links.network import Network
from jaxring.simulate.model import Model
from jaxring.topology.formats import reading

AnyCluster = Cluster | Described

_FOLDER = pathlib.Path(__file__).parent
_REQUIRED = object()


class _Numbers:
    """The numbers of a file, each an inline table {value, source}. Notes the sources of what is asked for."""

    def __init__(self, where: str, data: dict[str, Any]) -> None:
        self.where, self.data = where, data
        self.sources: dict[str, str] = {}

    def get(self, table: str, name: str, default: Any = _REQUIRED) -> Any:
        found = self.data.get(table, {}).get(name)
        if found is None:
            if default is _REQUIRED:
                raise ValueError(f"{self.where}: [{table}] has no {name}")
            return default
        if not isinstance(found, dict) or found.keys() != {"value", "source"} or not found["source"]:
            raise ValueError(f"{self.where}: [{table}] {name} is not {{ value = ..., source = ... }}")
        self.sources[f"{table}.{name}"] = str(found["source"])
        return found["value"]

    def by_protocol(self, table: str, name: str, protocols: tuple[str, ...]) -> dict[str, float]:
        return {protocol: float(self.get(f"{table}.{protocol}", name)) for protocol in protocols}


def names() -> tuple[str, ...]:
    """The clusters that there are."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@functools.cache
def load(name: str) -> AnyCluster:
    """A described cluster by name, or one in a file of your own: TOML, an ASTRA-sim network file, or InfraGraph.

    Raises ValueError for what the file lacks.
    """
    if name.endswith(reading.SUFFIXES):
        return _described(pathlib.Path(name))
    path = pathlib.Path(name) if name.endswith(".toml") else _FOLDER / f"{name}.toml"
    if not path.exists():
        raise ValueError(
            f"there is no cluster {name!r}; there are {', '.join(names())}, or give a .toml, .yml, .yaml or .json file"
        )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: {error}") from None
    return _cluster(path.stem, _flat(data))


def _described(path: pathlib.Path) -> Described:
    """A network that a file of another's describes. Access to the memory of another rank takes as long as the way from
    the first rank to another one of its machine."""
    found = reading.read(path)
    network = Network(found.fabric, through_ranks=found.through_ranks)
    near = next((rank for rank, group in enumerate(found.groups) if rank and group == found.groups[0]), None)
    away = network.latency(network.route(0, near)) if near else 0.0
    base = WHOLE if found.through_ranks else Model()
    return Described(
        name=path.stem,
        title=found.title,
        network=network,
        domains=found.groups,
        models={"simple": dataclasses.replace(base, memory=away, barrier=away)},
    )


def _flat(data: dict[str, Any]) -> dict[str, Any]:
    """Tables of tables by dotted names."""
    flat: dict[str, Any] = {"": {}}
    for key, value in data.items():
        if isinstance(value, dict) and "value" not in value:
            own = {k: v for k, v in value.items() if not isinstance(v, dict) or "value" in v}
            flat[key] = own
            flat |= {f"{key}.{k}": v for k, v in value.items() if k not in own}
        else:
            flat[""][key] = value
    return flat


def _cluster(name: str, data: dict[str, Any]) -> Cluster:
    numbers = _Numbers(name, data)
    get = numbers.get
    protocols = tuple(p for p in MESSAGES if f"protocol.{p}" in data)
    if not protocols:
        raise ValueError(f"{name}: it describes no protocol; write [protocol.simple]")
    known = {field.name for field in dataclasses.fields(Model)}
    models = {}
    for protocol in protocols:
        table = f"protocol.{protocol}"
        given = {key: get(table, key) for key in data[table] if key in known}
        models[protocol] = Model(**given)
    ranks = int(get("host", "ranks"))
    return Cluster(
        name=name,
        title=str(data[""].get("title", name)),
        kind=str(data[""].get("kind", "gpu")),
        ranks=ranks,
        domain=int(get("host", "domain", ranks)),
        channels=int(get("host", "channels")),
        ports=int(get("host", "ports")),
        inside=float(get("inside", "gigabytes")),
        multicast=float(get("inside", "multicast", 0.0)),
        multicast_us=float(get("inside", "multicast_us", 0.0)),
        multicast_channels=int(get("inside", "multicast_channels", 1)),
        inside_us=numbers.by_protocol("protocol", "inside_us", protocols),
        port=float(get("port", "gigabytes")),
        burst=float(get("port", "burst", 0.0)),
        attach=float(get("attach", "gigabytes")),
        across_us=numbers.by_protocol("protocol", "across_us", protocols),
        switch_us=float(get("network", "switch_us")),
        leaf=int(get("network", "leaf")),
        rails=bool(get("network", "rails")),
        oversubscription=float(get("network", "oversubscription")),
        models=models,
        sources=numbers.sources,
    )
