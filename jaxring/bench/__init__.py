"""`jaxring bench`: collectives timed against their peers in one run, interleaved.

The controller (`run.py`) starts one job of processes per peer (`fleet.py`, `member.py`) and has them take turns: only
one runs at a time, the others sleep. `work.py` says what is measured, `peers.py` and `backends/` who can take part,
`report.py` shows it.
"""
