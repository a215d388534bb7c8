"""Checks random programs: ``python -m tests.random.run --seed 0 --count 200``, also under ``jaxring run``.

Seed and commit say which program it was. A program that fails is shrunk and printed as Python that checks it again.
"""

from __future__ import annotations

import argparse
import collections
import os
import sys
import time

from tests.compiling import QUICK


def start(devices: int) -> None:
    """JAX on so many CPU devices of this process; before anything else of JAX."""
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {QUICK}"
    os.environ.setdefault("PJRT_NPROC", str(8 * devices))
    os.environ.setdefault("JAXRING_TIMEOUT", "60")
    import logging

    import jax

    logging.getLogger("jaxring").setLevel(logging.ERROR)  # partially manual regions are warned of
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", devices)
    jax.config.update("jax_enable_x64", True)


def run_reference(first: int, count: int, whole_program: bool) -> None:
    """Runs programs by jax.lax alone."""
    import jax

    if whole_program:
        from tests.random.rnd_partitioned import generate_partitioned
        from tests.random.rnd_partitioned_check import reference_partitioned

        for seed in range(first, first + count):
            reference_partitioned(generate_partitioned(seed, len(jax.devices())))
        return

    from tests.random.rnd_check import reference
    from tests.random.rnd_generate import generate

    for seed in range(first, first + count):
        reference(generate(seed, len(jax.devices())))


def run(first: int, count: int, at_once: int, say: bool) -> int:
    """Checks programs, and returns how many failed."""
    import jax

    from tests.random.rnd_check import check_many
    from tests.random.rnd_generate import TOGETHER, generate
    from tests.random.rnd_program import script
    from tests.random.rnd_shrink import shrink

    devices, failed, refused, done = len(jax.devices()), 0, 0, 0
    kinds: collections.Counter[str] = collections.Counter()
    began, cpu = time.monotonic(), time.process_time()
    seeds = list(range(first, first + count))
    groups = [[s for s in seeds if s // TOGETHER == g] for g in sorted({s // TOGETHER for s in seeds})]
    for i in range(0, len(groups), at_once):
        some = groups[i : i + at_once]
        if say:
            print(f"seeds {some[0][0]} to {some[-1][-1]}", flush=True)
        for outcome in check_many([[generate(seed, devices) for seed in group] for group in some]):
            done += 1
            kinds.update(outcome.program.body.kinds())
            refused += bool(outcome.refused)
            if outcome.refused and say:
                print(
                    f"  jax.lax refuses seed {outcome.program.seed}: {outcome.refused.strip().splitlines()[-1][:300]}",
                    flush=True,
                )
            if outcome.faults:
                failed += 1
                print(f"FAILED {outcome.program.describe()}\n" + "\n".join(outcome.faults), flush=True)
                small = shrink(outcome.program, devices) if jax.process_count() == 1 else outcome.program
                print(f"# Again, from the root of the repository:\n{script(small)}", flush=True)
        if say:
            each = (time.process_time() - cpu) / done
            print(
                f"  {done} done, {failed} failed; {each:.2f} s of CPU each, {time.monotonic() - began:.0f} s",
                flush=True,
            )
    if say:
        print(
            f"{done} programs of seeds {first} to {first + count - 1} on {devices} devices: {failed} failed, {refused} "
            f"that jax.lax refuses (compared with NumPy alone). Statements: {dict(kinds.most_common())}"
        )
    return failed


def run_partitioned(first: int, count: int, at_once: int, say: bool) -> int:
    """Checks programs of plain `jit` under whole_program, and returns how many failed."""
    import jax

    import jaxring
    from tests.random.rnd_partitioned import generate_partitioned
    from tests.random.rnd_partitioned_check import check_partitioned

    failed = refused = operations = 0
    kept: collections.Counter[str] = collections.Counter()
    began, cpu = time.monotonic(), time.process_time()
    for begin in range(first, first + count, at_once):
        end = min(begin + at_once, first + count)
        if say:
            print(f"seeds {begin} to {end - 1}", flush=True)
        programs = [generate_partitioned(seed, len(jax.devices())) for seed in range(begin, end)]
        for program, result in zip(programs, check_partitioned(programs), strict=True):
            refused += bool(result.refused)
            operations += result.operations
            kept.update(text.partition(": XLA's own collective: ")[2] for text in result.kept)
            if result.refused and say:
                print(f"  JAX refuses seed {program.seed}: {result.refused.splitlines()[0][:200]}", flush=True)
            if result.faults:
                failed += 1
                print(f"FAILED {program.describe()}\n" + "\n".join(result.faults), flush=True)
    if say:
        print(
            f"{count} programs of seeds {first} to {first + count - 1} on {len(jax.devices())} devices: {failed} "
            f"failed, {refused} that JAX refuses, {operations} operations of the engine, left to XLA: {dict(kept)}; "
            f"{time.monotonic() - began:.0f} s, {(time.process_time() - cpu) / count:.2f} s of CPU each, "
            f"jax {jax.__version__}, jaxring {jaxring.__version__}"
        )
    return failed


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first program's")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--devices", type=int, default=8, help="of this process")
    parser.add_argument(
        "--at-once", type=int, default=8, help="groups of programs, or whole programs, for each install"
    )
    parser.add_argument("--reference-only", action="store_true", help="run them by jax.lax, and compare nothing")
    parser.add_argument(
        "--whole-program", action="store_true", help="programs of plain jit, whose collectives the partitioner inserts"
    )
    options = parser.parse_args()
    start(options.devices)
    import jax

    if options.reference_only:
        run_reference(options.seed, options.count, options.whole_program)
        return
    if options.whole_program:
        sys.exit(1 if run_partitioned(options.seed, options.count, options.at_once, jax.process_index() == 0) else 0)
    failed = run(options.seed, options.count, options.at_once, jax.process_index() == 0)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
