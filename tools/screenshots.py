"""Pictures of what a terminal shows, for the pages of docs/: one SVG for each of SHOWN.

    python tools/screenshots.py            writes docs/screenshots/*.svg
    python tools/screenshots.py top        writes only those that are named

A command runs as it is shown. `top` looks at a job of two processes, of which process 1 is late, as in
docs/howto/slow.md; the job runs as long as the command does. `quickstart.py` is the first file of its page.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import pathlib
import re
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "screenshots"
ROWS, COLUMNS = 50, 100
SHOWN = {
    "explain": "jaxring explain all_reduce -n 4x2 --hosts 2 -b 1M",
    "quickstart": "python quickstart.py",
    "simulate": "jaxring simulate --cluster hgx-h100 --nodes 16 --collective all_reduce --bytes 64M",
    "top": "jaxring top --once",
}
_JOB = """
import time
import jax, jax.numpy as jnp, jaxring
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(jax.devices(), ("data",))

@jax.jit
@jax.shard_map(mesh=mesh, in_specs=P(), out_specs=P())
def mean(x):
    return jaxring.all_reduce(x, "data", "mean", assume_replicated=True)

x = mean(jnp.ones(1 << 18))
while True:
    time.sleep(0.03 * (jax.process_index() == 1))
    x = jax.block_until_ready(mean(x))
"""
_QUICKSTART = re.compile(r'^```python title="quickstart.py"\n(.*?)^```', re.MULTILINE | re.DOTALL)
# How long the job gets to compile and to be late often enough, and to end; in seconds.
_BEGIN, _END = 15.0, 30.0
_LIMIT = 120.0  # seconds that a command may take
# rich's picture loads its font from the network; the reader's own monospace font serves.
_FONTS = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)


def environment(home: str) -> dict[str, str]:
    """The variables of a command that is shown: not what this machine's user has measured or set."""
    path = os.pathsep.join((str(pathlib.Path(sys.executable).parent), os.environ["PATH"]))
    return {"PATH": path, "HOME": home, "JAX_PLATFORMS": "cpu"}


def screenshot(command: str, environ: dict[str, str]) -> str:
    """What a command shows in a terminal of COLUMNS columns, as an SVG; it runs in the folder HOME of ``environ``.
    RuntimeError where it fails, or is ended since it takes longer than two minutes."""
    terminal, end = os.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("4H", ROWS, COLUMNS, 0, 0))
    with os.fdopen(terminal, "rb", buffering=0) as reads:
        try:
            # In a session of its own, as its children may hold the terminal, too.
            running = subprocess.Popen(
                shlex.split(command),
                env=environ | {"TERM": "xterm-256color"},
                stdin=end,
                stdout=end,
                stderr=end,
                start_new_session=True,
                cwd=environ["HOME"],
            )
        finally:
            os.close(end)
        shown = b""
        limit = threading.Timer(_LIMIT, _end, [running])
        limit.start()
        try:
            with contextlib.suppress(OSError):  # EIO: nobody holds the terminal's other end any more
                while part := reads.read(1 << 16):
                    shown += part
            running.wait()
        finally:
            limit.cancel()
            if running.returncode is None:
                _end(running)
                running.wait()
    text = shown.decode().replace("\r\n", "\n").rstrip()
    if running.returncode != 0:
        raise RuntimeError(f"`{command}` ended with {running.returncode}:\n{text}")
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(f"$ {command}\n{text}"))
    return _FONTS.sub("", console.export_svg(title="jaxring", unique_id="terminal"))


def _end(command: subprocess.Popen[bytes]) -> None:
    """Kills a command and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGKILL)


@contextlib.contextmanager
def job(environ: dict[str, str]) -> Iterator[None]:
    """Two processes, of which one comes late, for as long as the context lasts. RuntimeError where the job ends before
    that."""
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "steps.py")
        script.write_text(_JOB)
        log = pathlib.Path(folder, "log")
        with log.open("w") as file:
            launcher = subprocess.Popen(["jaxring", "run", "-n", "2", str(script)], env=environ, stderr=file)
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(_BEGIN)
                raise RuntimeError(f"the job ended with {launcher.returncode} at once:\n{log.read_text()}")
            yield
        finally:
            launcher.send_signal(signal.SIGINT)
            try:
                launcher.wait(_END)
            except subprocess.TimeoutExpired:
                launcher.kill()  # its ranks end with it
                launcher.wait()


def main(names: list[str]) -> int:
    """Writes the pictures."""
    unknown = sorted(set(names) - set(SHOWN))
    if unknown:
        print(f"No such picture: {', '.join(unknown)}. There are {', '.join(SHOWN)}.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as home:
        environ = environment(home)
        program = _QUICKSTART.findall((ROOT / "docs/start/quickstart.md").read_text(encoding="utf-8"))[0]
        pathlib.Path(home, "quickstart.py").write_text(program, encoding="utf-8")
        FOLDER.mkdir(exist_ok=True)
        for name in names or SHOWN:
            with job(environ) if name == "top" else contextlib.nullcontext():
                picture = screenshot(SHOWN[name], environ)
            FOLDER.joinpath(f"{name}.svg").write_text(picture)
            print(FOLDER.joinpath(f"{name}.svg").relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
