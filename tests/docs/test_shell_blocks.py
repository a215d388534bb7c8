"""Every command of a page's ``sh`` blocks is run here, or stands in a table with the reason why it is not."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING

import pytest

from tests import ROOT
from tests.docs.test_commands import in_folder_of
from tests.docs.test_docs import FENCE, PAGES

if TYPE_CHECKING:
    from pathlib import Path

# What a block may be. Python runs in test_docs.py, or as a file of a console block; text is no command, nor a program.
LANGUAGES = {"console", "json", "python", "sh", "text"}
# By the form of a command, in which * stands for anything.
NOT_RUN = {
    "make *": ".ci/run makes it, and tests/package/readme.sh what README says",
    "git clone *": "the repository's address is the reader's own",
    "pip install *": "installs: tests/package/readme.sh and .ci/run do it in environments of their own",
    "build/.venv/native_tests/simulation_test *": "make seeds builds it; `make native-test` plays seeds",
    "eval *--print-completion*": "is for the reader's own shell; tests/cli/test_version.py has what it prints",
    "jaxring --print-completion *": "writes into the reader's home; tests/cli/test_version.py has what it prints",
    "python -m benchmarks.*": "measures for minutes, on a machine that does nothing else",
    "jaxring run * -m benchmarks.*": "measures for minutes, on a machine that does nothing else",
    "jaxring bench *": "measures for minutes; tests/bench runs it with fewer sizes",
    "jaxring tune*": "measures for minutes, for all programs of this user; tests/bench/test_tuning.py",
    "jaxring simulate --nodes *": "plays up to 65,536 ranks for minutes; tests/simulate plays fewer",
    "jaxring top": "shows a running job; tests/trace/test_live.py and tests/hosts/test_stragglers.py make some",
    "jaxring trace *": "needs a job that hangs; tests/trace makes some",
    "srun *": "needs Slurm; tests/clusters runs jobs in one of its own",
    "sbatch *": "needs Slurm; tests/clusters runs jobs in one of its own",
    "mpirun *": "needs Open MPI and two hosts; tests/cli/test_launchers.py runs it on one",
    "ray job *": "needs a Ray cluster; `make test-ray` runs the same program in a local one",
    "docker *": "needs Docker; tests/clusters/test_manifests.py reads the files",
    "kubectl *": "needs Kubernetes; tests/clusters/test_manifests.py checks the manifests",
    "export JAXRING_IB_*": "names adapters for RDMA; `make test-rdma` has some in a guest",
    "export JAXRING_PORT_RANGE=*": "is for a job after it; tests/world/test_ports.py has such",
    "*python two_hosts.py *": "needs two hosts; tests/hosts makes them of network namespaces",
    "jaxring run --hosts *": "needs two hosts with ssh; tests/hosts/test_ssh.py makes them of network namespaces",
    "jaxring run --nnodes *": "needs two hosts; tests/cli/test_run_hosts.py has its parts",
    "nft *": "changes the firewall; tests/hosts/test_firewall.py does so in network namespaces",
    "ufw *": "changes the firewall",
    "firewall-cmd *": "changes the firewall",
    "nc *": "needs two hosts",
    "XLA_FLAGS=* python -m pytest *": "needs the source tree of another package",
}


def commands(page: Path) -> list[str]:
    """A page's commands without comments, a line each."""
    blocks = [code for language, _, code in FENCE.findall(page.read_text()) if language == "sh"]
    lines = "\n".join(blocks).replace("\\\n", "").splitlines()
    return [command for line in lines if (command := re.sub(r"(^| )#.*", "", line).strip())]


def reasons(command: str) -> list[str]:
    """The rows of the table that say why it is not run."""
    return [form for form in NOT_RUN if fnmatch.fnmatchcase(command, form)]


RUN = [page for page in PAGES if not all(map(reasons, commands(page)))]


@pytest.mark.slow
@pytest.mark.multiprocess
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_end_well(page: Path, tmp_path: Path) -> None:
    for command in commands(page):
        if not reasons(command):
            ended = in_folder_of(page, tmp_path, command)
            assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"


def test_the_table_has_what_is_needed() -> None:
    found = [form for page in PAGES for command in commands(page) for form in reasons(command)]
    assert sorted(NOT_RUN.keys() - found) == []
    assert [page.name for page in RUN] == ["simulator.md", "launchers.md", "slow.md"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_block_says_what_it_is(page: Path) -> None:
    """One without a language would be a command that nothing runs."""
    assert {language for language, _, _ in FENCE.findall(page.read_text())} <= LANGUAGES


def test_comments_and_lines_that_go_on(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\nfirst --a \\\n  --b   # why\n\n# only a comment\nsecond\n```\n```text\nthird\n```\n")
    assert commands(page) == ["first --a   --b", "second"]
    assert reasons("docker build .") == ["docker *"]
    assert reasons("jaxring topo") == []
