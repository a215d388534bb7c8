"""The command `jaxring`: each subcommand is a module with HELP, add_arguments(parser) and run(arguments)."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import TYPE_CHECKING

from jaxring.errors import JaxringError

if TYPE_CHECKING:
    from collections.abc import Sequence

# In the order of the help text. A subcommand may import jax, so only the one that is asked for does its heavy imports.
COMMANDS = {name: f"jaxring.cli.{name}" for name in ("bench", "doctor", "explain", "run", "topo", "trace")}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own); returns the exit code, 2 for a usage error."""
    parser = argparse.ArgumentParser(prog="jaxring", description="Collectives for JAX: tools.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module_name in COMMANDS.items():
        module = importlib.import_module(module_name)
        subparser = subparsers.add_parser(name, help=module.HELP, description=module.__doc__)
        subparser.formatter_class = argparse.RawDescriptionHelpFormatter
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except JaxringError as error:
        print(f"jaxring {arguments.command}: {error}", file=sys.stderr)
        return 1
