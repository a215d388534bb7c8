"""Serve a running job's totals to Prometheus, in the OpenMetrics format.

    jaxring metrics --token-file FILE --listen 127.0.0.1:9461

Reads the flight records in the memory of this user's job on this host, as `jaxring top` does: the job does nothing for
it. Run one on each host. A request has to show what FILE holds (Prometheus: `authorization: {credentials_file: ...}`).
Where there is no such file it is made, readable by this user, of the job's viewing key, so that all hosts of a job
make the same. Needs `pip install 'jaxring[metrics]'`. Ends with the job.
"""

from __future__ import annotations

import importlib.util
import ipaddress
import pathlib
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from jaxring.errors import JaxringError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

    from jaxring.trace.totals import Totals


HELP = "serve a running job's totals to Prometheus"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring metrics`."""
    parser.add_argument(
        "--listen", default="127.0.0.1:9461", metavar="ADDRESS:PORT", help="port 0: any (default: %(default)s)"
    )
    parser.add_argument(
        "--token-file", type=pathlib.Path, metavar="FILE", required=True, help="what a request has to show, or to make"
    )
    parser.add_argument("--job", metavar="JOB", help="as for `jaxring top` (default: the only job of this user here)")
    parser.add_argument("--interval", type=float, default=1.0, metavar="S", help="seconds between looks (default: 1)")


def run(arguments: argparse.Namespace) -> int:
    """Serve until Ctrl-C or the job's end. Raises JaxringError for what cannot be served, and where there is no job."""
    if importlib.util.find_spec("prometheus_client") is None:
        raise JaxringError("Metrics are served by prometheus-client: pip install 'jaxring[metrics]'.")
    if not arguments.interval > 0:
        raise JaxringError(f"--interval {arguments.interval:g}: give seconds above 0.")
    host, port = _address(arguments.listen)
    from jaxring.runtime.reporting import scraping, viewing
    from jaxring.trace import jobs
    from jaxring.trace.totals import Totals

    found = jobs.look(arguments.job)
    if not found:
        which = f"process of job {arguments.job}" if arguments.job else "job of this user"
        raise JaxringError(f"There is no {which} on this host whose record can be read.")
    job, totals, lock = found[0].job(), Totals(), threading.Lock()
    key = next((access.key for each in found for access in viewing.accesses(each.pid)), None)
    application = scraping.guarded(_application(job, totals, lock), scraping.token(arguments.token_file, key))
    with scraping.serving(host, port, application) as port:
        print(f"metrics of {job}: http://{host}:{port}/metrics", flush=True)
        while found:
            with lock:
                totals.look([each.flight for each in found], time.time_ns())
            time.sleep(arguments.interval)
            found = jobs.look(arguments.job or job)
    print("The job has ended.", file=sys.stderr)
    return 0


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    try:
        return str(ipaddress.ip_address(host.strip("[]"))), int(port)
    except ValueError:
        raise JaxringError(f"--listen {text}: write an IP address and a port, as in 127.0.0.1:9461.") from None


def _application(job: str, totals: Totals, lock: threading.Lock) -> Any:
    from prometheus_client import CollectorRegistry, make_wsgi_app

    registry = CollectorRegistry()

    class Collector:
        def collect(self) -> Iterator[Any]:
            with lock:
                yield from families(job, totals)

    registry.register(Collector())
    return make_wsgi_app(registry)


def families(job: str, totals: Totals) -> list[Any]:
    """The metrics, for prometheus-client's exposition."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    from jaxring.trace.totals import Operations

    def family(kind: Any, name: str, text: str, labels: Sequence[str], values: Mapping[Any, float]) -> Any:
        made = kind(f"jaxring_{name}", text, labels=["job_name", *labels])
        for which, value in values.items():
            made.add_metric([job, *(which if isinstance(which, tuple) else (which,))], value)
        return made

    def field_of(name: str, of: Mapping[Any, object]) -> dict[Any, float]:
        return {which: getattr(each, name) for which, each in of.items()}

    each = ("process",)
    return [
        *(
            family(
                CounterMetricFamily,
                name,
                text,
                Operations._fields,
                field_of(field, totals.operations),
            )
            for name, text, field in (
                ("operations", "Operations that have ended.", "count"),
                ("operations_failed", "Operations that have failed.", "failed"),
                ("operation_seconds", "From launch to end, summed over operations.", "seconds"),
                ("operation_bytes", "Of a rank's input, summed over operations.", "nbytes"),
            )
        ),
        *(
            family(CounterMetricFamily, name, text, each, field_of(field, totals.meetings))
            for name, text, field in (
                ("met_operations", "Operations with other processes of this host.", "operations"),
                ("waited_seconds", "From the own launch to that of the last such process.", "waited_s"),
                ("late_seconds", "From the launch of the first such process to the own.", "late_s"),
                ("came_last", "Operations to which the process came last.", "last"),
            )
        ),
        family(CounterMetricFamily, "operations_missed", "Operations that no look has seen.", each, totals.missed),
        family(GaugeMetricFamily, "running_seconds", "Age of the oldest operation that runs.", each, totals.running_s),
    ]
