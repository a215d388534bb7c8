"""At a deadline the exception of every rank says what `jaxring trace diff` would, without a tool."""

from __future__ import annotations

import re
import textwrap

import pytest

from jaxring.cli import main
from tests.collectives.cases.coll_jobs import run_job

PROCESSES, DEVICES, LATE = 3, 2, 1
# Process LATE does not make its third call before the others have failed, and leaves a copy of all records before.
PROGRAM = f"""
    import pathlib, shutil, sys, time
    import jax, numpy as np
    from jax.sharding import NamedSharding, PartitionSpec as P
    import jaxring

    here, records = map(pathlib.Path, sys.argv[1:])
    me, n = jax.process_index(), jax.device_count()
    mesh = jax.make_mesh((n,), ("x",))
    x = jax.make_array_from_callback((5 * n,), NamedSharding(mesh, P("x")), lambda i: np.ones(5, np.float32))
    step = jax.jit(jax.shard_map(lambda v: jaxring.all_reduce(v, "x", timeout=8), mesh=mesh, in_specs=P("x"),
                                 out_specs=P("x"), check_vma=False))
    for _ in range(2):
        jax.block_until_ready(step(x))
    if me == {LATE}:
        while len(list(here.glob("failed *"))) < {PROCESSES - 1}:  # the job's limit ends it
            time.sleep(0.05)
        shutil.copytree(records, here / "copies")
    result = step(x)
    for shard in result.addressable_shards:
        try:
            np.asarray(shard.data)
        except jax.errors.JaxRuntimeError as error:
            (here / f"error {{shard.device.id}}").write_text(str(error))
    (here / f"failed {{me}}").touch()
    while len(list(here.glob("failed *"))) < {PROCESSES}:
        time.sleep(0.05)
"""
CALL = r"jaxring\.all_reduce sum of float32\[5\] over 'x' at program\.py:\d+"
# Who is late, in which operation, and where it was last; how long before differs by when its end was known.
SAYS = re.compile(
    rf"(?i:process) {LATE} (?:\(pid \d+ on \S+\) )?is behind: it has not begun ({CALL}, execution 2), which others "
    rf"have[.:] .*?Its last operation was ({CALL}, execution 1), done \S+ s (?:before|after) the others began\.",
)


@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
def test_the_exception_of_every_rank_says_what_trace_diff_says(tmp_path, capsys):
    script, records = tmp_path / "program.py", tmp_path / "records"
    script.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    arguments = (str(tmp_path), str(records))
    code, output = run_job(script, PROCESSES, DEVICES, *arguments, JAXRING_TRACE_DIR=str(records))
    assert code == 0, output[-5000:]
    copies = sorted(map(str, (tmp_path / "copies").iterdir()))
    assert len(copies) == PROCESSES
    assert main(["trace", "diff", *copies]) == 1
    diff = SAYS.search(said := capsys.readouterr().out)
    assert diff, said
    errors = [path.read_text() for path in sorted(tmp_path.glob("error *"))]
    assert len(errors) == PROCESSES * DEVICES
    for text in errors:
        assert text.startswith("DEADLINE_EXCEEDED: "), text
        found = SAYS.search(text)
        assert found, text
        assert found.groups() == diff.groups()
        assert text.count(" is behind: ") == 1, text
