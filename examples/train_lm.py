"""Train a small byte-level language model, data parallel, on the source text of Python's standard library.

    jaxring run -n 4 --devices-per-process 2 examples/train_lm.py

It is trained twice from the same seed: with `jaxring.all_reduce` taking the gradients' mean inside `jit(shard_map)`,
then with `jax.lax.psum` in its place. Both must end at the same loss. `python examples/train_lm.py --devices 2` runs it
in one process.
"""

import argparse
import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh

from lm import report
from lm.data import Corpus
from lm.model import Config
from lm.train import AXIS, Settings, mean_by_jaxring, mean_by_psum, train


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    defaults = Settings()
    parser.add_argument("--collective", choices=["both", "jaxring", "psum"], default="both")
    parser.add_argument("--steps", type=int, default=defaults.steps)
    parser.add_argument("--rows-per-device", type=int, default=defaults.rows_per_device)
    parser.add_argument("--width", type=int, default=defaults.config.width)
    parser.add_argument("--layers", type=int, default=defaults.config.layers)
    parser.add_argument("--rate", type=float, default=defaults.rate)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--devices", type=int, help="CPU devices of this process (not under `jaxring run`)")
    parser.add_argument("--plot", type=Path, default=Path("out/loss.png"), help="where to save the plot of the loss")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.devices:
        jax.config.update("jax_num_cpu_devices", args.devices)
    config = Config(width=args.width, layers=args.layers)
    settings = Settings(args.steps, args.rows_per_device, rate=args.rate, seed=args.seed, config=config)
    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    first = jax.process_index() == 0
    corpus = Corpus()
    setup = (
        f"{jax.process_count()} processes, {mesh.size} devices; {config.layers} layers, width {config.width}; "
        f"batch {settings.rows_per_device * mesh.size} x {config.context} bytes"
    )
    if first:
        print(
            f"text: {corpus.files} files of Python's standard library, {len(corpus.train) / 1e6:.1f} MB to learn from"
        )
        print(setup, flush=True)

    means = {"jaxring": mean_by_jaxring, "psum": mean_by_psum}
    chosen = list(means) if args.collective == "both" else [args.collective]
    runs = [train(name, means[name], mesh, corpus, settings) for name in chosen]
    wrong = report.problems(runs, mesh.size)
    if first:
        print("\n" + report.table(runs))
        if len(runs) == 2:
            apart = report.relative_difference(runs[0].losses[-1], runs[1].losses[-1])
            print(f"\nlast losses differ by {apart:.1e} relative (bound {report.TOLERANCE:g})")
        if "jaxring" in chosen:
            import jaxring

            print("\n" + jaxring.explain())
        try:
            report.plot(runs, args.plot, setup)
            print(f"\nplot: {args.plot}")
        except ModuleNotFoundError as error:
            print(f"\nno plot: {error.name} is not installed (pip install 'jaxring[demo]')")
        for line in wrong:
            print(f"FAILED: {line}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
