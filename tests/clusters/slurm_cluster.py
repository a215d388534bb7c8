"""A Slurm of one node on this host: munged, slurmctld and slurmd in a folder, on loopback, by the user who runs it."""

from __future__ import annotations

import contextlib
import getpass
import os
import pathlib
import secrets
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_START_S = 30.0
_END_S = 10.0
# More than any test asks for: Slurm need not know what the host has.
_CPUS = 16
_CONF = """\
ClusterName=jaxring
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
KillWait=2
SlurmdParameters=config_overrides
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextlib.contextmanager
def slurm(folder: pathlib.Path) -> Iterator[dict[str, str]]:
    """The environment in which sbatch and srun reach it. Its daemons have ended when the context is left.

    The path of ``folder`` is short: Munge's socket is in it. Its logs stay there.
    """
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    conf = folder / "slurm.conf"
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(_port()) for _ in range(2)]
        conf.write_text(_CONF.format(folder=folder, user=getpass.getuser(), ports=ports, cpus=_CPUS))
    environ = os.environ | {"SLURM_CONF": str(conf), "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    munged = [f"--{name.replace('_', '-')}={folder}/{file}" for name, file in _MUNGED.items()]
    with contextlib.ExitStack() as stack:
        for command in (
            ["munged", "--foreground", "--force", *munged],
            ["slurmctld", "-D", "-c"],
            ["slurmd", "-D", "-c", "-N", "localhost"],
        ):
            stack.enter_context(_daemon(command, environ, folder))
            if command[0] == "munged":
                _until(folder, lambda: (folder / "munge.socket").exists())
        _until(folder, lambda: "idle" in _said(["sinfo", "-h", "-o", "%T"], environ))
        yield environ


_MUNGED = {
    "key_file": "munge.key",
    "socket": "munge.socket",
    "pid_file": "munged.pid",
    "log_file": "munged.log",
    "seed_file": "munge.seed",
}


@contextlib.contextmanager
def _port() -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        yield probe.getsockname()[1]


@contextlib.contextmanager
def _daemon(command: list[str], environ: dict[str, str], folder: pathlib.Path) -> Iterator[None]:
    with (folder / f"{command[0]}.said").open("wb") as said:
        daemon = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        yield
    finally:
        daemon.send_signal(signal.SIGTERM)
        try:
            daemon.wait(_END_S)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()


def _said(command: list[str], environ: dict[str, str]) -> str:
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=_START_S).stdout


def _until(folder: pathlib.Path, true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START_S
    while not true():
        logs = "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in folder.glob("*.said"))
        assert time.monotonic() < deadline, f"Slurm did not start:\n{logs}"
        time.sleep(0.05)
