"""What the limits file may say, where it says it, and which limits a request has."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.limits.match import Asked, Rulebook
from gateway.limits.rules import LimitsError, load_rules

TEXT = """\
limits:
  cluster: {requests_per_second: 500, burst: 1000}
  node: {concurrency: 100}
  tenant:
    "*": {requests_per_minute: 5, tokens_per_minute: 1000}
    acme:
      requests_per_second: 50
  key:
    acme/web: {concurrency: 2}
"""
ASKED = Asked("default", "infer", "default", "tiny", "acme", "web")


def book(folder: Path, text: str = TEXT) -> Rulebook:
    file = folder / "limits.yaml"
    file.write_text(text)
    return Rulebook(load_rules(file), node="gw1", prefix="hr")


def test_a_request_has_the_limits_of_everything_it_is_part_of(tmp_path: Path) -> None:
    found = [f"{limit.strategy} {limit.shown}" for limit in book(tmp_path).match(ASKED)]
    assert found == [
        "cluster-qps 500 requests per second",
        "node-concurrency 100 requests at a time",
        "tenant-qps 50 requests per second",
        "tenant-tokens 1000 tokens per minute",
        "key-concurrency 2 requests at a time",
    ]


def test_every_limit_remembers_the_line_it_was_written_in(tmp_path: Path) -> None:
    lines = [limit.configured_at.rpartition("/")[2] for limit in book(tmp_path).match(ASKED)]
    assert lines == [f"limits.yaml:{n}" for n in (2, 3, 7, 5, 9)]


def test_a_star_gives_each_name_counts_of_its_own(tmp_path: Path) -> None:
    rulebook = book(tmp_path)
    (_, _, first, _) = rulebook.match(ASKED._replace(tenant="p"))
    (_, _, second, _) = rulebook.match(ASKED._replace(tenant="q"))
    assert (first.capacity, first.rate_per_us * 60e6) == (5, pytest.approx(5))
    assert first.key != second.key


def test_one_limit_has_one_key_whatever_else_differs(tmp_path: Path) -> None:
    rulebook = book(tmp_path)
    assert rulebook.match(ASKED)[2] is rulebook.match(ASKED._replace(model="other"))[2]


def test_no_name_can_be_spelt_into_anothers_counts(tmp_path: Path) -> None:
    rulebook = book(tmp_path, 'limits: {tenant: {"*": {concurrency: 1}}, key: {"*": {concurrency: 1}}}')
    keys = [
        limit.key
        for tenant, key_id in (("a", "b/c"), ("a/b", "c"), ("a:leases", "x"), ("a", "leases"), ("a/b/c", ""))
        for limit in rulebook.match(ASKED._replace(tenant=tenant, key_id=key_id))
    ]
    assert len(set(keys)) == len(keys) - 1  # the tenant "a" is there twice
    assert not {f"{key}:leases" for key in keys} & set(keys)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("limits:\n  tenant:\n    acme: {requests_per_second: -1}\n", r":3: limits\.tenant\.acme"),
        ("limits:\n  tenants: {}\n", ":2: limits.tenants: Extra inputs"),
        ("limits:\n  cluster:\n    burst: 4\n", ":2: .*burst belongs to"),
        ("limits:\n  node: {concurrency: 1}\n  node: {concurrency: 2}\n", ":3: 'node' is there twice"),
        ("limits: [\n", ":2: not valid YAML"),
        ("limits:\n  interface:\n    inferr: {concurrency: 1}\n", ":3: limits.interface.inferr"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(LimitsError, match=where):
        book(tmp_path, text)


def test_an_empty_file_has_no_limits(tmp_path: Path) -> None:
    rulebook = book(tmp_path, "")
    assert not rulebook
    assert rulebook.match(ASKED) == ()
