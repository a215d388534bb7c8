"""`jaxring run --hosts` between network namespaces, in each of which an sshd runs."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

from tests import ROOT
from tests.hosts.hosts_netns import hosts
from tests.leftovers import lives
from tests.stress.stress_jobs import environment

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
PORT = 2222
LIMIT_S = 120
pytestmark = [
    pytest.mark.slow,
    pytest.mark.multiprocess,
    pytest.mark.netns,
    pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="needs OpenSSH's server and client"),
]
# Process 1 fails, or all wait for their end, which is where PIDS names them.
PROGRAM = """
import os, pathlib, sys, time
import jax, numpy as np, jaxring
comm = jaxring.Communicator()
assert comm.all_reduce(np.ones(4))[0] == 2
pathlib.Path(sys.argv[2], str(jax.process_index())).write_text(str(os.getpid()))
if sys.argv[1] == "fail" and jax.process_index() == 1:
    raise ValueError("my own bug")
while True:
    comm.all_reduce(np.ones(4))
    time.sleep(0.05)
"""


@contextlib.contextmanager
def servers(made, folder):
    """An sshd on each host. Yields the ssh command that reaches them."""
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    config = folder / "sshd_config"
    config.write_text(
        f"Port {PORT}\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/key.pub\nPidFile none\n"
        "StrictModes no\nUsePAM no\nPermitRootLogin yes\n"
    )
    pathlib.Path("/run/sshd").mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        for host in range(2):
            command = made.command(host, folder, [SSHD, "-D", "-e", "-f", str(config)])
            log = stack.enter_context((folder / f"sshd{host}.log").open("wb"))
            started = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            stack.callback(started.wait, 10)
            stack.callback(started.terminate)
        options = ["BatchMode=yes", "StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"]
        ssh = ["ssh", "-F", "none", "-i", str(folder / "key"), "-p", str(PORT)]
        yield [*ssh, *(word for option in options for word in ("-o", option))]


def wait_for(true, what):
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_a_job_on_two_hosts(tmp_path):
    with hosts(2) as made, servers(made, tmp_path) as ssh:
        names = [made.address(host) for host in range(2)]
        for host in range(2):  # both listen
            probe = f"import socket; socket.create_connection(({names[host]!r}, {PORT}), 1)"
            listens = made.command(0, tmp_path, [sys.executable, "-c", probe])
            wait_for(lambda c=listens: not subprocess.run(c, capture_output=True, check=False).returncode, "sshd")
        env = environment(1, PJRT_NPROC="16")
        run = [sys.executable, "-P", "-m", "jaxring.cli", "run", "-n", "1", "--hosts", ",".join(names)]

        def start(*program):
            command = made.command(0, tmp_path, [*run, "--ssh", " ".join(ssh), *program])
            pipe = subprocess.PIPE
            return subprocess.Popen(
                command, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
            )

        first = start("--log-dir", str(tmp_path / "logs"), "examples/clusters/job.py")
        out, err = first.communicate(timeout=LIMIT_S)
        assert first.returncode == 0, out + err
        for process in range(2):
            line = f"process {process} of 2 on host{process}: the sum over 2 ranks is that of NumPy, 3"
            assert f"[{process}] {line}\n" in out
            assert line in (tmp_path / "logs" / f"process_{process}.log").read_text()
        assert "transport tcp" in out

        script = tmp_path / "script.py"
        script.write_text(PROGRAM)
        fails = start(str(script), "fail", str(tmp_path))
        out, err = fails.communicate(timeout=LIMIT_S)
        assert fails.returncode == 1, out + err
        said = f"host {names[1]} failed first: process 1: ValueError: my own bug (script.py:8)"
        assert said in err.splitlines()[-1], err
        assert "jaxring-report" not in err

        def begun():
            """The job, which waits, and the pids of its processes."""
            for process in range(2):
                (tmp_path / str(process)).unlink()
            waits = start(str(script), "wait", str(tmp_path))
            wait_for(lambda: len([f for f in tmp_path.glob("[01]") if f.read_text()]) == 2, "the job begins")
            pids = [int((tmp_path / str(process)).read_text()) for process in range(2)]
            assert all(map(lives, pids))
            return waits, pids

        interrupted, _ = begun()
        interrupted.send_signal(signal.SIGINT)
        _, err = interrupted.communicate(timeout=LIMIT_S)
        assert interrupted.returncode == 130, err
        assert err.splitlines()[-1].startswith("jaxring run: interrupted; host"), err
        assert all(f"host {name} " in err or name in err.partition("hosts")[2] for name in names), err

        killed, pids = begun()
        killed.send_signal(signal.SIGKILL)  # the launcher: made.command has replaced itself by it
        wait_for(lambda: not any(map(lives, pids)), "processes are left")
        killed.communicate(timeout=LIMIT_S)
