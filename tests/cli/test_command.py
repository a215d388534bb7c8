"""The command as a process: wrong settings, streams of any kind, and Ctrl-C."""

from __future__ import annotations

import io
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import tempfile
import termios

import pytest

import jaxring
from jaxring import _command as command
from jaxring import settings
from jaxring.cli import main
from tests import starting

SCRIPT = pathlib.Path(sys.executable).parent / "jaxring"
WRONG = {"JAXRING_ALGOO": "x", "JAXRING_TIMEOUT": "never"}
TOLD = "There is no variable JAXRING_ALGOO; the nearest one is JAXRING_ALGO."


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAXRING_", "NCCL_", "PYTHONIO"))}
    return kept | {"JAX_PLATFORMS": "cpu"} | more


def start(*argv, popen=subprocess.Popen, **options):
    options.setdefault("env", environment())
    return popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def finish(child):
    out, err = child.communicate(timeout=120)
    return child.returncode, out, err


def test_wrong_settings_are_what_doctor_shows_and_what_all_else_is_refused_for():
    env = environment(**WRONG)
    children = {
        "doctor": start(SCRIPT, "doctor", env=env),
        "all": start(SCRIPT, "doctor", "--all", env=env),
        "help": start(SCRIPT, "bench", "--help", env=env),
        "module": start(sys.executable, "-m", "jaxring.cli", "explain", "all_reduce", env=env),
        "import": start(sys.executable, "-c", "import jaxring", env=env),
    }
    code, out, err = finish(children["doctor"])
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0] == "Findings"
    assert lines[1].split()[:2] == ["severity", "what"]
    assert lines[2].startswith("grave     There is no variable JAXRING_ALGOO; the nearest")
    assert lines[3].startswith("grave     JAXRING_TIMEOUT must be a number of seconds")
    assert "Settings that something sets: none" in lines
    assert not set(out) & set("│┃─┏├")
    default = next(variable.default for variable in settings.VARIABLES if variable.name == "TIMEOUT")
    code, out, _ = finish(children["all"])
    assert code == 1
    assert re.search(rf"\nJAXRING_TIMEOUT +{default:g} +default\n", out)  # what is wrong has its default
    code, out, err = finish(children["help"])
    assert (code, out.split()[:2], err) == (0, ["usage:", "jaxring"], "")
    told = f"{TOLD} JAXRING_TIMEOUT must be a number of seconds above 0 and at most 1000000, and it is 'never'."
    assert finish(children["module"]) == (1, "", f"jaxring explain: {told}\n")
    code, out, err = finish(children["import"])
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == f"jaxring.errors.SettingsError: {told}"
    assert len(re.findall("  File ", err)) <= 3, err


# A program that is taken for the command, by its name.
NAMED_SO = """
import sys
import jaxring
from jaxring import cli

cli._parser()
assert not {"jax", "jaxring._native"} & set(sys.modules), "the command has imported what it does not need"
assert jaxring.lax.psum and callable(jaxring.all_reduce) and set(jaxring.__all__) <= set(dir(jaxring._public))
print(jaxring.__version__, hasattr(jaxring, "nothing_of_the_kind"))
"""


def test_the_command_imports_jax_where_something_asks_for_it(tmp_path):
    script = tmp_path / "jaxring"
    script.write_text(NAMED_SO)
    assert finish(start(sys.executable, script)) == (0, f"{jaxring.__version__} False\n", "")


def test_all_that_is_wrong_is_found_and_has_its_default():
    environ = {**WRONG, "JAXRING_MIN_NCHANNELS": "9", "JAXRING_MAX_NCHANNELS": "4", "JAXRING_SAVE_OPERANDS": "10"}
    found, wrong = settings.examine(environ | {"JAXRING_THREADS": "3"})
    assert [sentence.split()[:5] for sentence in wrong] == [
        ["There", "is", "no", "variable", "JAXRING_ALGOO;"],
        ["JAXRING_TIMEOUT", "must", "be", "a", "number"],
        ["JAXRING_MAX_NCHANNELS=4", "leaves", "nothing", "of", "JAXRING_MIN_NCHANNELS,"],
        ["JAXRING_SAVE_OPERANDS", "saves", "in", "JAXRING_TRACE_DIR,", "which"],
    ]
    assert settings.of(found) == settings.load({"JAXRING_THREADS": "3"})


def test_what_is_the_command():
    orig = ["python", "-P", "-m", "jaxring.cli", "doctor"]
    assert command.is_command(["-m", "doctor"], orig)
    assert command.is_command(["/usr/bin/jaxring", "doctor"], ["python", "/usr/bin/jaxring", "doctor"])
    assert not command.is_command(["-m", "4"], ["python", "-P", "-m", "jaxring.launcher.worker", "4"])
    assert not command.is_command(["train.py"], ["python", "train.py", "-m", "jaxring.cli"])
    assert not command.is_command(["/opt/jaxring/train.py"], ["python", "/opt/jaxring/train.py"])
    assert not command.is_command([], [])


def test_a_topology_file_that_is_none_does_not_end_doctor(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("JAXRING_TOPO_FILE", str(tmp_path / "none.xml"))
    assert main(["doctor"]) == 1
    assert "none.xml" in capsys.readouterr().out


def test_a_reader_that_leaves_and_a_terminal_without_arrows():
    many = ["explain", "all_reduce", "-n", "64x1", "--schedule"]
    read, write = os.pipe()
    os.close(read)
    left = subprocess.Popen([SCRIPT, *many], env=environment(), stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    few = ["explain", "all_reduce", "-n", "2x1", "-b", "1M", "--schedule"]
    ascii_only = start(SCRIPT, *few, env=environment(PYTHONIOENCODING="ascii"))
    full = start(SCRIPT, *few, env=environment(PYTHONIOENCODING="utf-8"), encoding="utf-8")
    assert left.communicate(timeout=120)[1] == ""
    assert left.returncode == 141
    code, out, err = finish(ascii_only)
    assert (code, err) == (0, "")
    assert out == finish(full)[1].replace("→", ">").replace("·", ";").replace("…", "~")
    assert "recv 1 > out[1]" in out


BENCH = ["bench", "all_gather", "-n", "1x2", "-b", "64", "-f", "16", "-w", "1", "--iters", "2", "--peers", "xla"]
# A second size that takes far longer than a signal.
LONG = ["-e", "64M", "-f", str(1 << 20), "--iters", "1000"]


@pytest.fixture
def short_folder():
    """For the bench's sockets, whose paths have to be short."""
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder)


@pytest.mark.multiprocess
@pytest.mark.parametrize(
    ("number", "said"), [("INT", "interrupted"), ("TERM", "ended by SIGTERM"), ("HUP", "ended by SIGHUP")]
)
@pytest.mark.sampled(3)
def test_after_ctrl_c_or_its_like_there_is_what_was_measured_until_then(number, said, tmp_path, short_folder):
    number, saved = signal.Signals[f"SIG{number}"], tmp_path / "out.json"
    here = signal.signal(number, signal.SIG_DFL)  # under nohup the command would ignore SIGHUP
    try:
        argv = [SCRIPT, *BENCH, *LONG, "--json", str(saved)]
        child = start(*argv, popen=starting.Popen, env=environment(TMPDIR=str(short_folder)))
    finally:
        signal.signal(number, here)
    lines = []
    try:
        for line in child.stdout:
            lines.append(line)
            if re.match("64 B +xla ", line):
                break
        for _ in range(1 if number == signal.SIGINT else 2):  # one more changes nothing
            child.send_signal(number)
        code, out, err = finish(child)
    finally:
        child.kill()
    assert (code, err) == (128 + number, f"jaxring bench: {said}\n")
    assert [*short_folder.iterdir()] == []
    rows = [line for line in "".join([*lines, out]).splitlines() if re.match(r"\S+ K?i?B ", line)]
    assert len(json.loads(saved.read_text())["results"]) == len(rows) == 2


# SIGTERM while hosts are being made.
HOSTS = """
import contextlib, signal, sys
from jaxring.bench.tuning import calibrate
from jaxring.cli import main
from tests import starting

@contextlib.contextmanager
def hosts_of(*_):
    try:
        signal.raise_signal(signal.SIGTERM)
        yield None
    finally:
        print("no host is left")

calibrate.hosts_of = hosts_of
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("argv", [("tune",), ("bench", "--tuner")], ids=" ".join)
def test_sigterm_leaves_no_hosts(argv):
    said = f"jaxring {argv[0]}: ended by SIGTERM\n"
    child = start(sys.executable, "-c", HOSTS, *argv, popen=starting.Popen)
    assert finish(child) == (143, "no host is left\n", said)


class _InterruptedAtRow(io.StringIO):
    """Ctrl-C while the row of a peer is printed."""

    def write(self, text):
        super().write(text)
        if re.match("64 B +xla ", text):
            raise KeyboardInterrupt
        return len(text)


@pytest.mark.multiprocess
def test_what_has_been_shown_has_been_recorded(tmp_path, monkeypatch):
    saved = tmp_path / "out.json"
    monkeypatch.setattr(sys, "stdout", _InterruptedAtRow())
    assert main([*BENCH, "--json", str(saved)]) == 130
    assert [result["peer"] for result in json.loads(saved.read_text())["results"]] == ["jaxring", "xla"]


@pytest.mark.multiprocess
def test_a_terminal_of_80_columns_shows_whole_numbers():
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 80))
    env = environment(TERM="xterm")
    env.pop("COLUMNS", None)
    child = subprocess.Popen([SCRIPT, *BENCH, "-e", "1K"], env=env, stdout=follower, stderr=subprocess.PIPE)
    os.close(follower)
    shown = b""
    try:
        while data := os.read(leader, 65536):
            shown += data
    except OSError:  # the other end is closed
        pass
    os.close(leader)
    _, err = child.communicate(timeout=120)
    assert (child.returncode, err) == (0, b"")
    lines = shown.decode().splitlines()
    assert max(map(len, lines)) <= 80
    assert "all_gather float32, 1 process x 2 devices" in lines
    header = next(line for line in lines if line.startswith("size"))
    assert header.split() == ["size", "peer", "time", "us", "busbw", "GB/s", "ratio", "#wrong", "choice"]
    rows = [line.split() for line in lines if re.match("(64 B|1 KiB) ", line)]
    assert [(row[2], row[-1]) for row in rows[:1]] == [("jaxring", "direct/memory/memory")]
    assert [(row[0], row[2], int(row[6])) for row in rows] == [
        (number, peer, 0) for number in ("64", "1") for peer in ("jaxring", "xla")
    ]
    assert all(float(row[3]) > 0 for row in rows)


@pytest.mark.multiprocess
def test_json_on_stdout(capsys):
    assert main([*BENCH, "-e", "64", "--json", "-"]) == 0
    out, err = capsys.readouterr()
    assert [each["peer"] for each in json.loads(out)["results"]] == ["jaxring", "xla"]
    assert "busbw GB/s" in err
    assert not pathlib.Path("-").exists()
