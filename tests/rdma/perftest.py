"""perftest between the two soft-RoCE devices of the guest of test-rdma: what they can do without us.

Run by itself it asks that both measurements come to an end and say something.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile
import time

SERVER, CLIENT, ADDRESS = "rxe0", "rxe1", "10.77.0.1"
PORT = 18515
LIMIT = 100.0
AVERAGE, TYPICAL = 3, 4  # columns of the bandwidth, and of the latency


def listening() -> bool:
    """Whether somebody waits for connections at perftest's port."""
    lines = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    lines += [line.split() for line in pathlib.Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    return any(words[1].endswith(f":{PORT:04X}") and words[3] == "0A" for words in lines)


def run(tool: str, *options: str) -> list[float]:
    """The client's one line of results."""
    command = [tool, "-x", "1", "-p", str(PORT), "-F", *options]
    with tempfile.TemporaryFile("w+") as said:
        server = subprocess.Popen([*command, "-d", SERVER], stdout=said, stderr=subprocess.STDOUT)
        try:
            deadline = time.monotonic() + LIMIT
            while not listening():
                assert server.poll() is None, f"{tool} does not listen"
                assert time.monotonic() < deadline, f"{tool} does not listen"
                time.sleep(0.05)
            client = subprocess.run(
                [*command, "-d", CLIENT, ADDRESS], capture_output=True, text=True, timeout=LIMIT, check=False
            )
            assert client.returncode == 0, client.stdout + client.stderr
            code = server.wait(LIMIT)
            said.seek(0)
            assert code == 0, said.read()
        finally:
            server.kill()
    # "#bytes #iterations" and what was measured; the numbers are in the line below.
    _, _, table = client.stdout.partition("#bytes")
    return [float(word) for word in table.splitlines()[1].split()]


def megabytes_per_second(size: int, times: int) -> float:
    """Of writes in both directions at once, both counted."""
    return run("ib_write_bw", "-b", "-s", str(size), "-n", str(times), "--report_gbits")[AVERAGE] * 1000 / 8


def latency_us(size: int, times: int) -> float:
    """Of a write, one way."""
    return run("ib_write_lat", "-s", str(size), "-n", str(times))[TYPICAL]


if __name__ == "__main__":
    rate, delay = megabytes_per_second(65536, 200), latency_us(8, 1000)
    print(f"ib_write_bw -b, 64 KiB: {rate:.1f} MB/s both ways together; ib_write_lat, 8 bytes: {delay:.1f} us")
    sys.exit(not (rate > 0 and delay > 0))
