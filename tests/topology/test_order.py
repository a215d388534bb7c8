"""The measured order of hosts: its file, which one a process takes, and what it means for memory domains."""

from __future__ import annotations

import pytest

from jaxring.errors import SettingsError
from jaxring.settings import load
from jaxring.topology import detect
from jaxring.topology import order as orders
from jaxring.topology.cache import machine_kind
from jaxring.topology.order import Hop, Order

ORDER = Order((Hop("b", 21.5, 9400), Hop("a", 20.0, 9300), Hop("c", 300.0, 100)), "a test")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    orders._current.cache_clear()
    yield tmp_path
    orders._current.cache_clear()


def test_what_is_written_is_read_again():
    read = orders.parse(ORDER.text().encode())
    assert (read.hops, read.source) == (ORDER.hops, ORDER.source)
    assert read.digest == ORDER.digest
    assert read.digest != Order(ORDER.hops[::-1]).digest


def test_a_topology_without_an_order_has_none():
    assert orders.parse(b'<system version="1"><cpu numaid="0"/></system>') is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("<system>\n<order/></system>", "line 2: an <order> of 0 hosts"),
        ('<system><order>\n<host name="a"/>\n<host name="a"/></order></system>', "line 3: host a is on line 2 already"),
        ('<system><order><host name="a"/></order>\n<order/></system>', "line 2: there is an <order> on line 1 already"),
        ("<system><order>\n<host/></order></system>", "line 2: an <order> holds elements <host name=...>"),
        ('<system><order><host name="a" us="-1"/></order></system>', "us and mbps of host a cannot be negative"),
        ('<system><order><host name="a" us="nan"/></order></system>', "is no number"),
        ("<graphs/>", "line 1: the outermost element is <graphs> and not <system>"),
    ],
)
def test_a_broken_one_says_line_and_reason(text, what):
    with pytest.raises(ValueError, match=what.replace("<", "[<]")):
        orders.parse(text.encode())


def test_the_cache_is_used_where_no_file_is_named(cache):
    assert orders.current() is None
    orders._current.cache_clear()
    path = orders.save(ORDER)
    assert path.is_relative_to(cache)
    assert [each.name for each in path.parent.iterdir()] == [f"{machine_kind()}.xml"]
    assert orders.current().hops == ORDER.hops
    assert orders.current().file == str(path)


def test_a_named_file_goes_before_the_cache(monkeypatch, tmp_path):
    orders.save(ORDER)
    file = tmp_path / "named.xml"
    file.write_text(Order(ORDER.hops[::-1]).text())
    monkeypatch.setattr(orders, "settings", lambda: load({"JAXRING_TOPO_FILE": str(file)}))
    assert orders.current().hosts == ("c", "a", "b")
    # The file describes no machine, so this one's is found as it is without it.
    found = detect.machine(load({"JAXRING_TOPO_FILE": str(file)}))
    assert (found.cpus, found.nets) == (detect.detect().cpus, detect.detect().nets)


def test_a_named_file_that_is_broken_is_an_error_and_the_cache_s_a_warning(monkeypatch, tmp_path, caplog):
    path = orders.save(ORDER)
    path.write_text(path.read_text().replace('name="a"', 'name="b"'))
    assert orders.current() is None
    assert f"{path} is not used: line 4: host b is on line 3 already" in caplog.text
    monkeypatch.setattr(orders, "settings", lambda: load({"JAXRING_TOPO_FILE": str(path)}))
    with pytest.raises(SettingsError, match="cannot be used: line 4: host b"):
        orders.current()


def test_domains_of_a_host_stay_together():
    hosts = [("a", "1"), ("b", "2"), ("c", "3"), ("a", "1"), ("b", "2")]
    assert orders.of_domains(ORDER, hosts) == ((1, 4, 0, 3, 2), "")


def test_a_job_on_some_of_the_hosts_takes_their_order():
    assert orders.of_domains(ORDER, [("c", "3"), ("b", "2")]) == ((1, 0), "")


def test_an_unknown_host_or_two_of_one_name_have_no_order():
    assert orders.of_domains(ORDER, [("a", "1"), ("x", "2")]) == ((), "host x is not in the measured order")
    assert orders.of_domains(ORDER, [("a", "1"), ("a", "2")]) == ((), "several hosts are called a")
