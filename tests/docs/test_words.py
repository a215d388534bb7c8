"""Words that the project once used for things that have a name in the field: docs/glossary.md says which name."""

from __future__ import annotations

import re
import subprocess

from tests import ROOT

# Each as a whole word or phrase, in any case.
EARLIER = (
    "stash(?:es|ed|ing)?",
    "lookers?",
    "signs? of life",
    "strangers?",
    "connections? beside the data",
    "generations?",
    "recipes?",
    "joined calls?",
    "joint calls?",
    "carriers?",
    "pass ?desk",
    "landings?",
    "seats?",
    "whoever",
    "himself",
    "herself",
    "bells?",
    "boards?",
    "gates?",
    "desks?",
    "bur(?:y|ies|ied|ying)",
    "complain(?:s|ed|ing|ts?)?",
    "enrol(?:s|led|ling)?",
    "strik(?:es?|ing)",
    "struck",
    "joints?",
    "lumps?",
    "spread failures?",
    "spoil(?:s|ed|t|ing)?",
    "trials?",
    "brains?",
    "outlooks?",
    "farewells?",
    "hear(?:s|d|ing)?",
    "mail(?:s|ed|ing)?",
    "surroundings?",
    "cards?",
    "nodes?",
)
# Not among them, since plain English and the field need them: note, told, places, ear, instance, part, sit, rise, side,
# beside, spread.
WORDS = re.compile(rf"\b({'|'.join(EARLIER)})\b", re.IGNORECASE)
# A name in two_parts or inCamels is words, too.
PARTS = re.compile(r"_|(?<=[a-z])(?=[A-Z])")
# Where the earlier words are meant, and the results of earlier runs.
MEANT = ("CHANGELOG.md", "docs/glossary.md", "docs/benchmarks/", "docs/benchmarks.md", "tests/docs/test_words.py")
# Why a word may stand in the files that begin so.
ALLOWED: dict[tuple[str, str], tuple[str, ...]] = {
    ("generation", "Membership.generation is deprecated"): (
        "jaxring/world/membership.py",
        "tests/world/test_membership.py",
    ),
    ("stashed", "the counter stashed_bytes keeps its name for one release"): (
        "ffi/bind/module.cc",
        "jaxring/runtime/__init__.py",
        "tests/collectives/worker_communicator.py",
    ),
    ("nodes", "files of operands of the version before say it"): (
        "jaxring/runtime/plan_spec.py",
        "tests/trace/test_replay.py",
    ),
    ("nodes?", "a launch in a CUDA graph"): (
        "benchmarks/gpu/",
        "docs/cuda-host.md",
        "ffi/cuda/host/standalone.h",
        "ffi/cuda/kernels/staging.h",
        "ffi/cuda/sim/fake/gpu_fake.h",
        "ffi/tests/cuda/host/cuda_host_memory_test.cc",
    ),
    ("nodes?", "a host, as Slurm, torchrun, Kubernetes and Ray say, and options that are named like theirs"): (
        "docs/concepts/tuning.md",
        "docs/howto/",
        "docs/reference/cli.md",
        "examples/clusters/",
        "jaxring/cli/run.py",
        "jaxring/launcher/hosts.py",
        "tests/cli/",
        "tests/clusters/",
    ),
    ("nodes?", "a host of a described cluster, and an operation in a trace of Chakra"): (
        "docs/concepts/simulator.md",
        "jaxring/cli/simulate",
        "jaxring/simulate/",
        "tests/docs/test_described_machines.py",
        "tests/docs/test_shell_blocks.py",
        "tests/simulate/",
        "tests/topology/formats/test_infragraph.py",
        "tools/screenshots.py",
    ),
    ("nodes?", "a NUMA node, and names in Linux's sysfs and in libibverbs"): (
        "ffi/transport/verbs/endpoint/verbs_abi.h",
        "jaxring/topology/",
        "tests/topology/",
    ),
    ("nodes?", "an element of std::map, of a pytree, of Python's syntax or of a forest"): (
        "ffi/engine/sites.cc",
        "ffi/network/connectors.cc",
        "jaxring/optax/specs.py",
        "jaxring/overlap.py",
        "jaxring/plan/foreign/places.py",
        "tests/docs/test_experimental.py",
        "tests/layers/",
        "tests/user/test_types.py",
        "tools/newest.py",
    ),
    ("cards?", "a NIC or a GPU as it is sold, and a device's name in InfraGraph"): (
        "benchmarks/gpu/suite.py",
        "jaxring/topology/",
        "tests/benchmarks/test_gpu.py",
        "tests/topology/formats/test_infragraph.py",
    ),
    ("hear(?:d)?", "what a connection that does not authenticate has been read of"): ("benchmarks/unauthenticated.py",),
    ("mail", "Slurm's MailProg"): ("tests/clusters/slurm_cluster.py",),
    ("surroundings", "what lies around a port"): ("tests/topology/test_topology.py",),
}
SUFFIXES = (".py", ".cc", ".h", ".cu", ".md", ".sh", ".toml", ".cmake", ".yml", ".mk", "Makefile")


def earlier_words(text: str) -> set[str]:
    """The earlier words in a text, in lower case."""
    return {found.lower() for found in WORDS.findall(PARTS.sub(" ", text))}


def allowed(name: str, word: str) -> list[tuple[tuple[str, str], str]]:
    """The entries of ALLOWED by which a word may stand in a file."""
    return [
        (entry, begin)
        for entry, begins in ALLOWED.items()
        for begin in begins
        if name.startswith(begin) and re.fullmatch(entry[0], word)
    ]


def test_the_earlier_words_are_gone():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    found, used = [], set()
    for name in files:
        if name.endswith(SUFFIXES) and not name.startswith(MEANT) and (ROOT / name).is_file():
            for word in earlier_words((ROOT / name).read_text(encoding="utf-8")):
                entries = allowed(name, word)
                used |= set(entries)
                if not entries:
                    found.append((name, word))
    assert not found, "docs/glossary.md has the field's words for these"
    assert {(entry, begin) for entry, begins in ALLOWED.items() for begin in begins} == used, "these are not needed"


def test_words_are_found_in_names_and_prose():
    assert earlier_words("A Stash of kSignsOfLife, and the connection beside the data of_strangers") == {
        "stash",
        "signs of life",
        "connection beside the data",
        "strangers",
    }
    assert earlier_words("stashed_bytes, a stashing, OneNode, heard_at, enrolling, burying") == {
        *("stashed", "stashing", "node", "heard", "enrolling", "burying"),
    }
    assert earlier_words("a landscape, a heart, shears, nodal, discard, regeneration") == set()
