"""A process of a job that sums the same terms on several numbers of ranks, split and ordered in several ways.

Arguments: a seed, the number of cases for each dtype, and how many processes a host has (all, if that is left out). All
sums must be those of Python's fractions. Where JAXRING_ALGO names an algorithm, it must have added the sums' integers.
"""

import os
import sys

if len(sys.argv) > 3:
    os.environ["JAXRING_HOSTID"] = str(int(os.environ["JAX_PROCESS_ID"]) // int(sys.argv[3]))

import jax
import numpy as np

import jaxring
from tests.collectives.cases.coll_ranks import Ranks
from tests.collectives.reproducible.rep_exact import FORMATS, bits, exact_sum, terms

TERMS = 48


def expected(x):
    return np.array([exact_sum(x[:, j], x.dtype.name) for j in range(x.shape[1])], FORMATS[x.dtype.name][0])


def split(rng, x, n):
    """The terms in any order, as many for each of n ranks: -0, which changes no sum, where they are too few."""
    each = -(-len(x) // n)
    more = np.full((n * each - len(x), x.shape[1]), -0.0).astype(x.dtype)
    return rng.permutation(np.concatenate([x, more])).reshape(n, each, x.shape[1])


def chosen():
    """The algorithms of the all-reduces of integers, which carry the sums."""
    return {plan.algorithm for plan in jaxring.plans() if plan.collective == "all_reduce" and plan.dtype == "uint32"}


def program(protocols):
    def run(t):
        found = {
            "rows": jaxring.reproducible_sum(t["rows"], "x", 0),
            "columns": jaxring.reproducible_sum(t["columns"], "x", 1),
            "both sides": jaxring.reproducible_sum(t["both"], "x", (0, 2)),
        }
        for protocol in protocols:
            options = {"algorithm": "reproducible", "protocol": protocol}
            found[f"ranks {protocol}"] = jaxring.all_reduce(t["ranks"], "x", **options)
        return found

    return run


def main(seed, cases):
    rng = np.random.default_rng(seed)
    devices = jax.devices()
    alone = jax.process_count() == 1
    counts = range(1, len(devices) + 1) if alone else [len(devices)]
    wrong = checked = 0
    for name in FORMATS:
        x = terms(rng, name, TERMS, cases)
        want = expected(x)
        for n in counts:
            deal = [split(rng, x, n) for _ in range(3)]
            each = deal[0].shape[1]
            few = 2 if each % 2 == 0 else 1
            ranks = Ranks([devices[i] for i in (rng.permutation(len(devices)) if alone else range(len(devices)))][:n])
            tree = {
                "rows": deal[0],
                "columns": np.ascontiguousarray(deal[1].swapaxes(1, 2)),
                "both": np.ascontiguousarray(deal[2].reshape(n, few, each // few, cases).swapaxes(2, 3)),
                "ranks": rng.permutation(x[:n]),
            }
            one_each = expected(x[:n])
            protocols = [None, "memory"] if alone else [None, "ll", "simple"]
            for what, shards in ranks.run(program(protocols), tree, check_vma=False).items():
                for rank, value in shards.items():
                    bad = np.flatnonzero(bits(value) != (one_each if what.startswith("ranks") else want))
                    checked += 1
                    wrong += bad.size
                    for j in bad[:3]:
                        print(f"{name} {what} of {n}, rank {rank}, case {j}: {value[j]!r} for {x[:, j].tolist()}")
    assert wrong == 0, f"{wrong} sums are wrong"
    assert checked >= 4 * len(FORMATS)
    asked = os.environ.get("JAXRING_ALGO")
    assert not asked or asked in chosen(), f"{asked} was asked for, and there were {chosen()}"
    print(f"process {jax.process_index()}: {checked} arrays of {cases} sums are right")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main(int(sys.argv[1]), int(sys.argv[2]))
