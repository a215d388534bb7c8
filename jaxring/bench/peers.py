"""The peers that can be measured: how their processes are started, and whether they are installed here.

`jaxring:JAXRING_ALGO=direct` is a peer, too: jaxring, with a variable that the processes of this peer alone have. Runs
are interleaved, so this compares algorithms or settings with each other as they are compared with other libraries.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import re
import shutil
import subprocess
from typing import TYPE_CHECKING

from jaxring.errors import JaxringError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


# Debian calls MPICH's so where Open MPI is installed, too.
OPEN_MPI, MPICH = "mpirun", "mpirun.mpich"


@dataclasses.dataclass(frozen=True)
class Peer:
    """``backend``: the module of `jaxring.bench.backends`. ``missing(processes, devices)``: why it cannot run.

    ``ours``: what of ours does the same work, for the ratio. ``environment``: over what all peers get.
    ``launcher``: the program of MPI's that starts its processes, "" where we do.
    """

    name: str
    title: str
    backend: str
    missing: Callable[[int, int], str]
    launcher: str = ""
    ours: str = "jaxring"
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def kind(self) -> str:
        """Its name in `PEERS`."""
        return self.name.partition(":")[0]

    @property
    def runs_programs(self) -> bool:
        """Whether it can carry the collectives of a whole program of JAX."""
        return self.backend == "jax_programs"


def _module(name: str) -> str:
    return "" if importlib.util.find_spec(name) else f"the Python package {name} is not installed"


def _one_process(processes: int, _devices: int) -> str:
    return "" if processes == 1 else "between processes XLA's own collectives go by gloo"


def _gloo(processes: int, _devices: int) -> str:
    return "" if processes > 1 else "it works between processes"


def _launched(launcher: str, processes: int, devices: int) -> str:
    if processes == 1 or devices != 1:
        return "it works between processes of one device each"
    return "" if shutil.which(launcher) else f"there is no {launcher}"


def _mpirun(processes: int, devices: int) -> str:
    return _launched(OPEN_MPI, processes, devices)


def _mpi(processes: int, devices: int) -> str:
    if not os.environ.get("MPITRAMPOLINE_LIB"):
        return "MPITRAMPOLINE_LIB does not name a library"
    return _mpirun(processes, devices)


def _communicator(processes: int, devices: int) -> str:
    return "" if processes > 1 and devices == 1 else "it works between processes of one device each"


def _mpi4jax(processes: int, devices: int) -> str:
    return _mpirun(processes, devices) or _module("mpi4jax")


def _raw_mpi(processes: int, devices: int) -> str:
    return _mpirun(processes, devices) or _module("mpi4py")


def mpich_library() -> str:
    """The path of MPICH's library, "" where the linker knows none."""
    ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
    listed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"libmpich\.so\.12 .*=> (\S+)", listed)
    return found[1] if found else ""


def _raw_mpich(processes: int, devices: int) -> str:
    missing = _launched(MPICH, processes, devices) or _module("mpi4py")
    return missing or ("" if mpich_library() else "there is no libmpich.so.12")


def _torch(processes: int, devices: int) -> str:
    if processes == 1 or devices != 1:
        return "it works between processes of one device each"
    return _module("torch")


PEERS = {
    peer.name: peer
    for peer in (
        Peer("jaxring", "jaxring", "jax_programs", lambda _p, _d: ""),
        Peer("communicator", "jaxring.Communicator on NumPy buffers", "communicator", _communicator),
        Peer("xla", "XLA in one process (jax.lax)", "jax_programs", _one_process),
        Peer("gloo", "JAX's Gloo (jax.lax)", "jax_programs", _gloo),
        Peer("mpi", "JAX's MPI backend (jax.lax)", "jax_programs", _mpi, launcher=OPEN_MPI),
        Peer("mpi4jax", "mpi4jax", "mpi4jax_programs", _mpi4jax, launcher=OPEN_MPI),
        Peer("torch", "torch.distributed with Gloo", "torch_gloo", _torch),
        Peer("raw-mpi", "mpi4py on NumPy buffers, no JAX", "raw_mpi", _raw_mpi, launcher=OPEN_MPI, ours="communicator"),
        Peer(
            "raw-mpich",
            "mpi4py with MPICH on NumPy buffers",
            "raw_mpi",
            _raw_mpich,
            MPICH,
            "communicator",
            {"MPI4PY_MPIABI": "mpich"},
        ),
    )
}

# By which `jaxring tune` measures. It asks for algorithms that other peers do not have.
CALLS = Peer("calls", "jaxring's engine", "engine_calls", lambda _p, _d: "")

OURS = frozenset(peer.ours for peer in PEERS.values())


def find(name: str) -> Peer:
    """The peer of a name, KIND or KIND:VARIABLE=VALUE. JaxringError where there is none."""
    kind, colon, setting = name.partition(":")
    variable, equals, value = setting.partition("=")
    if kind not in PEERS or (colon and not (variable and equals)):
        raise JaxringError(f"Unknown peer {name!r}: use {', '.join(PEERS)}, or as jaxring:JAXRING_ALGO=direct.")
    peer = PEERS[kind]
    if not colon:
        return peer
    # Ours with the variable is compared with ours without.
    ours = kind if kind in OURS else peer.ours
    title = f"{peer.title} with {setting}"
    return dataclasses.replace(peer, name=name, title=title, ours=ours, environment={variable: value})


def is_ours(name: str) -> bool:
    """Whether it is this library, with whatever variable."""
    return find(name).kind in OURS


def with_ours(names: Iterable[str]) -> tuple[str, ...]:
    """``names``, behind what of ours they are compared with. JaxringError where one is unknown."""
    given = dict.fromkeys(names)
    ours = dict.fromkeys(find(name).ours for name in given)
    return tuple({"jaxring": None} | ours | given)
