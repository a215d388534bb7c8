"""Jobs in which processes are killed, leave, join and come back while they train, several at once; elastic.py has more.

Seed 1: a process is killed after it has agreed to take part. 5: communicators of those that stay and those that join.
"""

from __future__ import annotations

import pytest

from tests.recovery import elastic


@pytest.mark.slow
@pytest.mark.timeout(3 * elastic.LIMIT_S)  # the job, and that of its last members, whose end says what they have done
@pytest.mark.multiprocess
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("seed", [1, 4, 5, 6])
def test_all_end_with_the_bits_of_a_job_that_had_its_last_members_from_the_start(tmp_path, seed):
    elastic.run(seed, tmp_path)
