"""Runs one case of the CUDA engine's tests under JAX: `python -m benchmarks.gpu.job CASE PROCESSES DEVICES`."""

from __future__ import annotations

import importlib
import sys

if __name__ == "__main__":
    jobs = importlib.import_module("tests.runtime.cuda.cudahost_jobs")
    case, processes, devices = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    print(*jobs.run_job(case, processes, devices), sep="\n")
