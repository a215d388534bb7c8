"""Tell which algorithm and protocol a collective would take on a described job, and why; print its schedule.

    jaxring explain all_reduce -n 4x2 --hosts 2 -b 1M

Nothing is started: this is the planner's own decision, from the shape of the job. `jaxring.explain()` tells inside a
program what its collectives took, with the transports found. Times are predicted by this machine's profile, or by the
one that comes with jaxring where `jaxring tune` has not made one; they order the candidates. Beside them stands what
limits a candidate (latency of messages that wait for each other, work per message, bandwidth, memory), and its share of
the speed of light: a bound below the time of any algorithm. Where rings go between hosts, it says in which order they
visit these: the one that `jaxring tune --ranks` has measured, or that of ranks.

A barrier is the all_reduce of one uint32, ragged_all_to_all has blocks of equal size here, and send and recv are the
two halves of one message. Of calls that JAXRING_CHECKSUM=oracle never checks, it says so, and why.

    jaxring explain all_reduce -n 4x1 --import chain        an algorithm of your own among the candidates, by its table
    jaxring explain all_reduce -n 4x1 --import chain --algorithm chain --schedule     and its steps
    jaxring explain all_reduce -n 8x1 --algorithm tree --svg tree.svg                 a drawing of its steps
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import pathlib
from typing import TYPE_CHECKING, Any

from jaxring.bench.table import width_of
from jaxring.cli import arguments as types
from jaxring.cli import modules, terminal
from jaxring.errors import JaxringError
from jaxring.plan import cost, diagram, protocols, tuner, user
from jaxring.plan.algorithms import ALGORITHMS, build
from jaxring.plan.choice import figures, in_one_channel
from jaxring.plan.collectives import CALLS, COLLECTIVES
from jaxring.plan.profile_file import COMMODITY
from jaxring.plan.schedule import ScheduleError, Spec
from jaxring.plan.show import show
from jaxring.plan.verify import verify
from jaxring.settings.sizes import shown
from jaxring.topology import calibration, order
from jaxring.tracing import unchecked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jaxring.plan.choice import Choice
    from jaxring.plan.profile import Profile
    from jaxring.plan.schedule import Schedule

HELP = "tell which algorithm and protocol a collective takes, and why"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `jaxring explain`."""
    add = parser.add_argument
    calls = tuple(name for name, facts in CALLS.items() if facts.has_call)
    add("collective", type=types.one_of("collective", calls), metavar="COLLECTIVE", help=", ".join(calls))
    add("-n", dest="job", type=types.layout, default=(1, 8), metavar="PxD", help="processes x devices (default: 1x8)")
    add(
        "--hosts",
        type=types.positive,
        default=1,
        metavar="N",
        help="hosts that share the processes equally (default: 1)",
    )
    help_ = "what joins hosts, for the prices: tcp or rdma (default: tcp)"
    add("--network", choices=cost.NETWORKS, default="tcp", help=help_)
    help_ = "input bytes of a rank, with K, M or G (default: 1M)"
    add("-b", dest="nbytes", type=types.nbytes, default="1M", metavar="SIZE", help=help_)
    add("-d", dest="dtype", type=types.dtype, default="float32", metavar="TYPE", help="data type (default: float32)")
    add("--algorithm", metavar="NAME", help="ask for this algorithm")
    modules.add_argument(parser)
    protocol = types.one_of("protocol", tuple(protocols.CPU))
    add("--protocol", type=protocol, metavar="NAME", help="ask for this protocol")
    help_ = "prices by a profile's file, or by the one that comes with jaxring: commodity (default: this machine's)"
    add("--profile", type=profile, metavar="FILE", help=help_)
    add("--json", action="store_true", help="print the choice and its candidates as JSON")
    add("--schedule", action="store_true", help="print the schedule, verified")
    for name, letter in (("rank", "R"), ("lane", "L")):
        help_ = f"print this {name}'s steps only{', or draw them' * (name == 'lane')} (repeatable)"
        add(f"--{name}", type=types.counted, action="append", default=[], metavar=letter, help=help_)
    help_ = "draw the schedule's steps and messages: time to the right, a row per rank"
    add("--svg", type=pathlib.Path, metavar="FILE", help=help_)
    parser.set_defaults(error=parser.error)


def profile(text: str) -> Profile:
    """The profile of that name or file. Raises ArgumentTypeError."""
    if text == COMMODITY.kind:
        return COMMODITY
    try:
        return calibration.read(pathlib.Path(text))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def _order() -> str:
    found = order.current()
    if found is None:
        return "the order of ranks: no other was measured (jaxring tune --ranks)"
    return f"the order of {found.file}, where a job's hosts are all in it: {', '.join(found.hosts)}"


def _unchecked(call: str) -> str:
    """Why JAXRING_CHECKSUM=oracle does not check this call, "" where it does."""
    why = unchecked.of_call(call)
    return "" if why is None else f"{unchecked.sentence(why, call)}."


def _as_json(arguments: argparse.Namespace, choice: Choice) -> dict[str, Any]:
    """Times are in us; a candidate's is measured where it was, else predicted."""
    return {
        "algorithm": choice.algorithm,
        "protocol": choice.protocol,
        "channels": choice.channels,
        "reason": choice.reason,
        "unchecked": _unchecked(arguments.call),
        "light_us": choice.light,
        "candidates": [
            {
                "name": name,
                "us": us,
                "predicted_us": choice.details[name].predicted.us,
                "measured_us": choice.details[name].measured,
                "limit": choice.details[name].predicted.limit,
            }
            for name, us in choice.candidates
        ],
    }


def run(arguments: argparse.Namespace) -> int:
    """Print the decision. Raises JaxringError for a job that cannot be, or a choice that cannot serve."""
    processes, devices = arguments.job
    if processes % arguments.hosts:
        raise JaxringError(f"{processes} processes cannot be shared equally by {arguments.hosts} hosts.")
    placement = tuple(rank // devices for rank in range(processes * devices))
    hosts = tuple(process * arguments.hosts // processes for process in placement)
    facts = CALLS[arguments.collective]
    arguments.call, arguments.collective = facts.name, facts.schedules_of
    if facts.half != "both":
        placement = tuple(range(len(placement)))  # the halves of a message run apart: neither reads the other's memory
    if facts.name == "barrier":
        arguments.nbytes, arguments.dtype = 4, "uint32"
    modules.load(arguments.modules)
    if arguments.rank and not arguments.schedule:
        arguments.error("--rank chooses from the steps that --schedule prints")
    if arguments.lane and not (arguments.schedule or arguments.svg):
        arguments.error("--lane chooses from the steps that --schedule prints and --svg draws")
    try:
        if arguments.algorithm is not None:
            # Not when the command line is parsed: the modules above register names.
            types.one_of("algorithm", (*ALGORITHMS, *user.names()))(arguments.algorithm)
    except argparse.ArgumentTypeError as error:
        arguments.error(f"argument --algorithm: {error}")
    if arguments.algorithm in user.names() and arguments.algorithm not in user.names(arguments.collective):
        raise JaxringError(f"No algorithm {arguments.algorithm!r} is registered for {arguments.collective}.")
    return _decide(arguments, placement, hosts)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """A ValueError is what is refused: JaxringError. What a function of the user's own raises has a note of its call,
    and goes through with its traceback."""
    try:
        yield
    except ValueError as error:
        if getattr(error, "__notes__", ()) and not isinstance(error, ScheduleError):
            raise
        raise JaxringError(f"{error}.") from None


def _say(*sentences: str) -> None:
    for sentence in filter(None, sentences):
        print(terminal.wrapped(sentence))


def _what(arguments: argparse.Namespace, placement: tuple[int, ...]) -> str:
    ranks = f"{len(placement)} ranks in {arguments.job[0]} process(es) on {arguments.hosts} host(s)"
    return f"{arguments.call} of {shown(arguments.nbytes)} {arguments.dtype}, {ranks}"


def _show(arguments: argparse.Namespace, schedule: Schedule) -> None:
    """The schedule, as far as it is asked for. Raises JaxringError for a rank or lane that there is not."""
    if arguments.schedule:
        verify(schedule)
        with _refusing():
            text = show(schedule, width_of(), arguments.rank, arguments.lane)
        print(f"\n{text}")
    _draw(arguments, schedule)


def _draw(arguments: argparse.Namespace, schedule: Schedule) -> None:
    if arguments.svg is not None:
        verify(schedule)
        with _refusing():
            text = diagram.svg(schedule, arguments.lane)
        try:
            arguments.svg.write_text(text, encoding="utf-8")
        except OSError as error:
            raise JaxringError(f"Cannot write {arguments.svg}: {error.strerror}.") from error


def _decide(arguments: argparse.Namespace, placement: tuple[int, ...], hosts: tuple[int, ...]) -> int:
    """The planner's decision, and the schedule that it leads to."""
    prices = arguments.profile or calibration.current()
    facts, ranks = CALLS[arguments.call], range(len(placement))
    protocol = "simple" if facts.ragged and len(set(placement)) > 1 else None
    pairs = COLLECTIVES[arguments.collective].pairs
    perm = tuple((rank, (rank + 1) % len(placement)) for rank in ranks) if pairs else ()
    choose = functools.partial(
        tuner.choose,
        arguments.collective,
        placement,
        hosts,
        arguments.nbytes,
        arguments.dtype,
        protocol=arguments.protocol or protocol,
        network=arguments.network,
        profile=prices,
        perm=perm,
    )
    with _refusing():
        choice = choose(algorithm=arguments.algorithm)
        choice = in_one_channel(choice, facts.ragged, facts.half != "both")
        spec = Spec(
            arguments.collective,
            len(placement),
            choice.algorithm,
            channels=choice.channels,
            placement=placement,
            perm=perm,
        )
        schedule = build(spec) if choice.algorithm in ALGORITHMS else user.build_user(spec)
    notes: list[str] = []
    own = user.names(arguments.collective)
    if own and arguments.algorithm is None and not facts.ragged and facts.half == "both":
        choice, notes = _with_own(choice, own, choose)
    if arguments.json:
        print(json.dumps(_as_json(arguments, choice)))
        _draw(arguments, schedule)
        return 0
    _say(
        _what(arguments, placement),
        f"takes {choice.algorithm} by {choice.protocol}, {choice.channels} channel(s): {choice.reason}.",
        _unchecked(arguments.call),
        f"times in us, by profile {prices.kind}; the speed of light is {figures(choice.light)}:",
    )
    width = max(len("candidate"), *(len(name) for name, _ in choice.candidates))
    print(f"  {'candidate':<{width}}  {'predicted':>10}  {'measured':>10}  {'light':>6}  limited by")
    for name, us in choice.candidates:
        detail = choice.details[name]
        measured = "-" if detail.measured is None else figures(detail.measured)
        share = f"{choice.light / us:.0%}"
        limit = detail.predicted.limit
        print(f"  {name:<{width}}  {figures(detail.predicted.us):>10}  {measured:>10}  {share:>6}  {limit}")
    _say(*notes)
    if arguments.hosts > 1 and choice.algorithm in ALGORITHMS and ALGORITHMS[choice.algorithm].ordered:
        print(terminal.wrapped(f"rings visit hosts in {_order()}"))
    _show(arguments, schedule)
    return 0


def _with_own(choice: Choice, names: Sequence[str], choose: Callable[..., Choice]) -> tuple[Choice, list[str]]:
    """The same choice beside the registered algorithms, which only a call takes that names one, and what to say of
    these: one that does not serve these ranks is no candidate."""
    candidates, details, notes = list(choice.candidates), dict(choice.details), list[str]()
    for name in names:
        try:
            own = choose(algorithm=name)
        except Exception as error:  # what a user's function raises for ranks that it is not made for
            notes.append(f"{name}, of your own, is no candidate here: {str(error) or type(error).__name__}")
            continue
        candidates += own.candidates
        details |= own.details
        notes.append(f"{name} is of your own: a call takes it where it asks for algorithm={name!r}")
    # Measured times where all have been measured, else predictions.
    measured = all(details[name].measured is not None for name, _ in candidates)
    times = {name: detail.measured if measured else detail.predicted.us for name, detail in details.items()}
    listed = sorted(((name, times[name] or 0.0) for name, _ in candidates), key=lambda each: each[1])
    return dataclasses.replace(choice, candidates=listed, details=details), notes
