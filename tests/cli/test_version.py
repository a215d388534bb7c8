"""What the command says of itself: its versions, and completions for shells."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys

import pytest

from jaxring.cli import COMMANDS, main


def test_python_m_jaxring_is_the_command_and_says_its_versions():
    command = [sys.executable, "-P", "-X", "importtime", "-m", "jaxring", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    jax = importlib.metadata.version("jax")
    assert done.stdout.startswith(f"jaxring {importlib.metadata.version('jaxring')}, jax {jax}, jaxlib ")
    built = importlib.util.find_spec("jaxring._native_cuda") is not None
    assert ("; CPU engine, CUDA engine built with CUDA " if built else "; CPU engine, no CUDA engine;") in done.stdout
    assert re.search(
        r"; transports shared memory, NCCL's network plugins, (no )?RDMA \(.+\), TCP, (no )?TLS .+", done.stdout
    )
    assert "| jax\n" not in done.stderr  # which would take a second


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completions_know_all_commands(shell, capsys):
    with pytest.raises(SystemExit) as end:
        main(["--print-completion", shell])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert all(name in said for name in COMMANDS)
    assert "--node-rank" in said


def test_completions_without_shtab(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as end:
        main(["--print-completion", "bash"])
    assert end.value.code == 1
    assert "pip install 'jaxring[completion]'" in capsys.readouterr().err
