"""`jaxring metrics`: totals of looks at records, and Debian's Prometheus that scrapes a real job."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from wsgiref.util import setup_testing_defaults

import pytest

from jaxring.cli import main, metrics
from jaxring.trace.totals import Operations, Totals
from tests import ROOT
from tests.stress.stress_jobs import Job, environment
from tests.trace.test_live import MS, PROGRAM, flights, record

WHICH = Operations("process 0", "all_reduce", "call 1", "ring/simple")


def test_what_ended_between_looks_is_added_once():
    totals = Totals()
    running = record(3, 30, 0)
    totals.look(flights([record(1, 0, 10), running]), 40 * MS)
    assert totals.operations == {}
    assert totals.running_s == {"process 0": 0.01}
    ended = [record(1, 0, 10), record(3, 30, 50), record(4, 60, 65)]
    for _ in range(2):
        totals.look(flights(ended), 70 * MS)
        total = totals.operations[WHICH]
        assert (total.count, total.failed, total.nbytes) == (2, 0, 2_000_000)
        assert total.seconds == pytest.approx(0.025)
        assert totals.running_s == {"process 0": 0}
    totals.look(flights([record(n, n, n + 1) for n in (90, 91)]), 100 * MS)
    assert totals.missed["process 0"] == 85


def test_an_execution_counts_when_all_processes_have_had_a_look_for_it():
    totals = Totals()
    totals.look(flights([], []), 0)
    totals.look(flights([record(1, 10, 30)], [record(1, 25, 0)]), 29 * MS)
    totals.look(flights([record(1, 10, 30)], [record(1, 25, 30)]), 40 * MS)
    early, late = (totals.meetings[f"process {n}"] for n in (0, 1))
    assert (early.operations, early.waited_s, early.late_s, early.last) == (1, pytest.approx(0.015), 0, 0)
    assert (late.operations, late.waited_s, late.late_s, late.last) == (1, 0, pytest.approx(0.015), 1)
    totals.look(flights([record(1, 10, 30)], [record(1, 25, 30)]), 50 * MS)
    assert early.operations == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--listen", "somewhere:1"], "write an IP address and a port"),
        (["--job", "nowhere:1"], "There is no process of job nowhere:1"),
        (["--interval", "0"], "give seconds above 0"),
    ],
)
def test_what_cannot_be_served_is_refused(options, says, capsys):
    assert main(["metrics", "--token-file", "/nonexistent/token", *options]) == 1
    assert says in capsys.readouterr().err


def test_nothing_is_served_without_a_token(capsys):
    with pytest.raises(SystemExit):
        main(["metrics"])
    assert "--token-file" in capsys.readouterr().err


def test_prometheus_gets_the_format_that_it_asks_for():
    totals = Totals()
    totals.look(flights([record(1, 0, 10)]), 40 * MS)
    environ = {"HTTP_ACCEPT": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"}
    setup_testing_defaults(environ)
    headers = {}
    answer = metrics._application("a job", totals, threading.Lock())(environ, lambda _, given: headers.update(given))
    assert headers["Content-Type"].startswith("application/openmetrics-text; version=1.")
    assert b"".join(answer).endswith(b"# EOF\n")


def asked(url, token=""):
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode()


def until(found, seconds=60):
    """What `found` returns once it is neither false nor an error of the network."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if value := found():
                return value
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.multiprocess
@pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="there is no prometheus (Debian: apt install prometheus)"
)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.slow
def test_prometheus_scrapes_a_job_and_the_dashboard_s_queries_have_data(tmp_path):
    script, token = tmp_path / "program.py", tmp_path / "token"
    script.write_text(PROGRAM, encoding="utf-8")
    with Job(tmp_path) as job:
        cli = [sys.executable, "-m", "jaxring.cli"]
        env = {**environment(), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        launcher = job.start([*cli, "run", "-n", "3", str(script)], env)
        for process in range(3):
            job.wait_for_line(0, f"[{process}] begun")
        listen = ["--listen", "127.0.0.1:0", "--token-file", str(token), "--interval", "0.2"]
        job.start([*cli, "metrics", "--job", str(launcher.pid), *listen], env)
        url = job.wait_for_line(1, "metrics of ").split()[-1]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            asked(url)
        assert token.stat().st_mode & 0o777 == 0o600
        until(lambda: "jaxring_came_last_total{" in asked(url, token.read_text().strip()))
        port = url.rsplit(":", 1)[1].split("/")[0]
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "scrape_configs:\n- job_name: jaxring\n  scrape_interval: 4s\n  scrape_timeout: 3s\n"
            f"  authorization: {{credentials_file: {token}}}\n"
            f"  static_configs: [{{targets: ['127.0.0.1:{port}']}}]\n",
            encoding="utf-8",
        )
        api = free_port()
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{api}",
                "--log.level=error",
            ]
        )
        try:
            dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text())
            scrapes = until(lambda: two_scrapes(api))
            variable = next(each for each in dashboard["templating"]["list"] if each["name"] == "job_name")
            series, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
            (name,) = of_prometheus(api, f"label/{label}/values", {"match[]": series})
            for panel in dashboard["panels"]:
                for target in panel["targets"]:
                    assert results(api, target["expr"].replace("$job_name", name), scrapes[1]), target["expr"]
            late = until(lambda: results(api, "jaxring_came_last_total / jaxring_met_operations_total > 0.9"))
        finally:
            server.terminate()
            server.wait(20)
    assert [each["metric"]["process"] for each in late] == ["process 1"]


def two_scrapes(port):
    """The moments of the first scrapes, once there are two."""
    found = of_prometheus(port, "query", {"query": "up[10m]"})["result"]
    values = found[0]["values"] if found else []
    assert all(answered == "1" for _, answered in values)
    return [moment for moment, _ in values] if len(values) > 1 else None


def results(port, query, moment=None):
    """What Prometheus finds, for a query of the dashboard: as of that moment, or now."""
    arguments = {"query": query.replace("$__rate_interval", "16s"), **({} if moment is None else {"time": moment})}
    return [each for each in of_prometheus(port, "query", arguments)["result"] if each["value"][1] != "NaN"]


def of_prometheus(port, what, arguments):
    return json.loads(asked(f"http://127.0.0.1:{port}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"))["data"]


def free_port():
    import socket

    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
