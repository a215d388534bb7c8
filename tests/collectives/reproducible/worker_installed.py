"""A process whose jax.lax.psum are jaxring's, by the algorithm that JAXRING_ALGO names: exact sums, rounded once."""

import jax
import numpy as np

import jaxring
from tests.collectives.cases.coll_ranks import Ranks
from tests.collectives.reproducible.rep_exact import FORMATS, bits, exact_sum, terms


def main():
    ranks = Ranks(jax.devices())
    x = {name: terms(np.random.default_rng(0), name, ranks.n, 200) for name in FORMATS}

    def program(t):
        return jax.lax.psum(t, "x") | {"largest": jax.lax.pmax(t["float32"], "x")}

    with jaxring.installed():
        found = ranks.run(program, x, check_vma=False)
    largest = found.pop("largest")
    for name, shards in found.items():
        want = np.array([exact_sum(x[name][:, j], name) for j in range(x[name].shape[1])], FORMATS[name][0])
        for value in shards.values():
            np.testing.assert_array_equal(bits(value), want)
    for value in largest.values():
        np.testing.assert_array_equal(value, x["float32"].max(0))
    lines = [line for line in jaxring.explain().splitlines() if "all_reduce" in line]
    assert lines, jaxring.explain()
    assert all("reproducible" in line for line in lines), lines
    print(f"process {jax.process_index()}: sums are exact")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
