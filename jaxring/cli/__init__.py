"""The command `jaxring`: each subcommand is a module with HELP, add_arguments(parser) and run(arguments)."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from jaxring import _command
from jaxring.cli import terminal
from jaxring.errors import JaxringError
from jaxring.settings import load

if TYPE_CHECKING:
    from collections.abc import Sequence

# In the order of the help text. A subcommand may import jax, so only the one that is asked for does its heavy imports.
COMMANDS = {
    name: f"jaxring.cli.{name}"
    for name in ("bench", "doctor", "explain", "metrics", "run", "simulate", "top", "topo", "trace", "tune")
}
# The exit code as shells have it for what ends by SIGPIPE.
PIPE_BROKEN = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own); returns the exit code, 2 for a usage error.

    Errors of ours, Ctrl-C and a reader that has gone (`| head`) end it without a traceback.
    """
    terminal.survive_encoding()
    try:
        try:
            return _run(argv)
        finally:
            _command.end_at_interrupt()  # nothing is left to be done
            sys.stdout.flush()
    except BrokenPipeError:
        terminal.drop_output()
        return PIPE_BROKEN


def _run(argv: Sequence[str] | None) -> int:
    command = "jaxring"
    try:
        _command.raise_at_interrupt()
        arguments = _parser().parse_args(argv)
        command = f"jaxring {arguments.command}"
        if arguments.command != "doctor":  # which shows what is wrong with them
            load(os.environ)
        code = int(arguments.run(arguments))
        _command.raise_lost()
        return code
    except JaxringError as error:
        print(f"{command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        number = _command.interrupting_signal()
        said = "interrupted" if number == signal.SIGINT else f"ended by {number.name}"
        with contextlib.suppress(OSError):  # the terminal may have gone
            print(f"{command}: {said}", file=sys.stderr)
        return 128 + number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="jaxring", description="Collectives for JAX: tools.")
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        help="print the versions of jaxring, jax, Python and CUDA, and the transports",
    )
    help_ = "print what makes a shell complete jaxring's options (needs the package shtab)"
    parser.add_argument("--print-completion", action=_Completion, choices=("bash", "zsh", "tcsh"), help=help_)
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module_name in COMMANDS.items():
        module = importlib.import_module(module_name)
        subparser = subparsers.add_parser(name, help=module.HELP, description=module.__doc__)
        subparser.formatter_class = terminal.Help
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from jaxring.cli import versions

        print(terminal.wrapped(versions.sentence()))
        parser.exit(0)


class _Completion(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, _namespace: object, shell: object, _option: object = None
    ) -> None:
        try:
            shtab = importlib.import_module("shtab")
        except ImportError:
            parser.exit(1, "jaxring: completions are made by shtab: pip install 'jaxring[completion]'\n")
        print(shtab.complete(parser, shell=str(shell)))
        parser.exit(0)
