"""GOAL: what is written can be played by rules of its own, and takes what the simulator says."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from jaxring.plan.algorithms import build
from jaxring.plan.schedule import Spec
from jaxring.simulate import goal
from jaxring.simulate.model import Model
from jaxring.simulate.tile_sizes import cut
from tests.simulate.support import LATENCY, SPEED, mesh, run

O_SEND, O_RECV = 0.75, 1.25


def read(text: str) -> dict[int, dict[str, tuple[list[str], list[str]]]]:
    """For each rank its lines by label: words, and labels that they require."""
    ranks: dict[int, dict[str, tuple[list[str], list[str]]]] = {}
    for line in text.splitlines():
        if found := re.fullmatch(r"rank (\d+) \{", line):
            ranks[int(found[1])] = now = {}
        elif found := re.fullmatch(r"(l\d+): (.+)", line):
            now[found[1]] = (found[2].split(), [])
        elif found := re.fullmatch(r"(l\d+) requires (l\d+)", line):
            now[found[1]][1].append(found[2])
    return ranks


def finish(ranks: dict[int, dict[str, tuple[list[str], list[str]]]]) -> float:
    """When the last line is done, where only requirements order lines, and messages have links of their own."""
    done: dict[tuple[int, str], float] = {}
    arrive: dict[tuple[int, int, str], list[float]] = {}
    taken: dict[tuple[int, int, str], int] = {}
    free: dict[tuple[int, int], float] = {}
    left = [(rank, label) for rank, lines in ranks.items() for label in lines]
    while left:
        waiting = []
        for rank, label in left:
            words, requires = ranks[rank][label]
            if any((rank, other) not in done for other in requires):
                waiting.append((rank, label))
                continue
            begin = max((done[rank, other] for other in requires), default=0.0)
            if words[0] == "calc":
                done[rank, label] = begin + int(words[1]) / 1000
                continue
            nbytes, other, tag = int(words[1].rstrip("b")), int(words[3]), words[5]
            if words[0] == "send":
                done[rank, label] = begin + O_SEND
                wire = max(begin + O_SEND, free.get((rank, other), 0.0)) + nbytes / (SPEED * 1000)
                free[rank, other] = wire
                arrive.setdefault((rank, other, tag), []).append(wire + LATENCY)
                continue
            key = (other, rank, tag)
            number = taken.get(key, 0)
            if len(arrive.get(key, [])) <= number:
                waiting.append((rank, label))
                continue
            taken[key] = number + 1
            done[rank, label] = max(begin, arrive[key][number]) + O_RECV
        assert len(waiting) < len(left), "it deadlocks"
        left = waiting
    return max(done.values())


@pytest.mark.parametrize(("collective", "algorithm", "ranks"), [("all_reduce", "ring", 5), ("all_gather", "ring", 4)])
def test_takes_what_the_simulator_says(collective, algorithm, ranks):
    model = Model(send_overhead=O_SEND, recv_overhead=O_RECV, slots=64, tile_bytes=4096)
    nbytes = 8192 * ranks
    schedule = build(Spec(collective, ranks, algorithm))
    played, _ = run(schedule, nbytes, mesh(ranks), model)
    written = goal.text(schedule, cut(schedule, nbytes, "int32", model.tile_bytes))
    assert written.startswith(f"num_ranks {ranks}\n")
    assert finish(read(written)) == pytest.approx(played.time_us)


@pytest.mark.parametrize("algorithm", ["tree", "halving_doubling"])
def test_every_message_is_received_as_it_is_sent(algorithm):
    schedule = build(Spec("all_reduce", 6, algorithm))
    ranks = read(goal.text(schedule, cut(schedule, 1 << 16, "float32", 8192), copy=0.001))
    sends, receives = {}, {}
    for rank, lines in ranks.items():
        for words, _ in lines.values():
            if words[0] == "send":
                sends.setdefault((rank, int(words[3]), words[5]), []).append(words[1])
            elif words[0] == "recv":
                receives.setdefault((int(words[3]), rank, words[5]), []).append(words[1])
    assert sends == receives
    finish(ranks)


@pytest.mark.loggopsim
@pytest.mark.skipif(not shutil.which("LogGOPSim") or not shutil.which("txt2bin"), reason="LogGOPSim is not built here")
def test_loggopsim_takes_what_the_simulator_says(tmp_path):
    """Its times are whole ns, its senders and receivers have one overhead, and its first byte costs no gap."""
    overhead, ranks = 1.0, 5
    model = Model(send_overhead=overhead, recv_overhead=overhead, slots=64, tile_bytes=65536)
    nbytes = 65536 * ranks
    schedule = build(Spec("all_reduce", ranks, "ring"))
    played, _ = run(schedule, nbytes, mesh(ranks), model)
    (tmp_path / "ring.goal").write_text(goal.text(schedule, cut(schedule, nbytes, "int32", model.tile_bytes)))
    subprocess.run(["txt2bin", "-i", "ring.goal", "-o", "ring.bin"], cwd=tmp_path, check=True, timeout=60)
    # ns and ns a byte; -S: messages of all sizes are sent at once, without a handshake.
    numbers = {"-L": LATENCY * 1000, "-o": overhead * 1000, "-g": 0, "-O": 0, "-S": 1 << 30}
    options = [text for option, ns in numbers.items() for text in (option, str(int(ns)))]
    command = ["LogGOPSim", "-f", "ring.bin", *options, "-G", str(1 / SPEED)]
    said = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60).stdout
    ends = re.findall(r"^(?:Host|Maximum finishing time at host) \d+: (\d+)", said, re.MULTILINE)
    assert max(map(int, ends)) / 1000 == pytest.approx(played.time_us, rel=0.02)


def test_memory_cannot_be_written():
    schedule = build(Spec("all_reduce", 4, "direct", placement=(0, 0, 0, 0)))
    with pytest.raises(ValueError, match="goes by memory that ranks share"):
        goal.text(schedule, cut(schedule, 1024, "float32", 512))
