"""A process of a job that goes through tables of cases: coll_worker.py FOLDER TABLE ...

Writes to FOLDER/PROCESS.json what failed and the digests of results.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
import traceback

import jax

jax.config.update("jax_enable_x64", True)

import coll_meshes  # noqa: E402
import coll_tables  # noqa: E402

import jaxring  # noqa: E402
from tests.collectives.cases.coll_ranks import Ranks, Report  # noqa: E402


def main() -> None:
    """Runs the tables; a table that raises is a failure, and the next ones still run."""
    folder, names = pathlib.Path(sys.argv[1]), sys.argv[2:]
    ranks = Ranks(sorted(jax.devices(), key=lambda d: (d.process_index, d.id)))
    results = {}
    for name in names:
        report = Report()
        began = time.monotonic()
        try:
            (coll_tables.TABLES | coll_meshes.TABLES)[name](ranks, report)
        except Exception:
            report.fail(f"{name} raised:\n{traceback.format_exc()[-3000:]}")
        results[name] = {
            "checks": report.checks,
            "failures": report.failures,
            "digests": report.digests,
            "numbers": report.numbers,
            "seconds": time.monotonic() - began,
        }
    transports = sorted({t for plan in jaxring.plans() for t in plan.transports})
    answer = {"tables": results, "transports": transports, "ranks": ranks.n}
    (folder / f"{jax.process_index()}.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
