"""`jaxring bench`: collectives timed against their peers in one run, interleaved.

The controller (`run.py`) starts one job of processes per peer (`fleet.py`, `member.py`) and has them take turns: only
one runs at a time, the others sleep. `work.py` defines what is measured, `peers.py` and `backends/` the libraries that
can take part, and `report.py` shows the results. Studies of the repository's own are in its folder
`benchmarks/`, which is not part of the package.
"""
