"""Paths and headers of the HTTP door, read without a socket."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import HeadraceError, InvalidInput, QueueFull, Unauthenticated
from gateway.http import headers as h
from gateway.http.counters import BOUNDS_S, DoorCounters
from gateway.http.errors import error_body, error_head
from gateway.http.paths import ModelPath, parse_model_path


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (b"/v2/models/m/infer", ModelPath("m", "", "infer")),
        (b"/v2/models/m/versions/7/infer", ModelPath("m", "7", "infer")),
        (b"/v2/models/m", ModelPath("m", "", "")),
        (b"/v2/models/m/versions/7", ModelPath("m", "7", "")),
        (b"/v2/models/versions/ready", ModelPath("versions", "", "ready")),
        (b"/v2/models/infer/infer", ModelPath("infer", "", "infer")),
        (b"/v2/models/a%2Fb/config", ModelPath("a/b", "", "config")),
        (b"/v2/models/Qwen2.5-0.5B/ready", ModelPath("Qwen2.5-0.5B", "", "ready")),
        (b"/v2/models/..%2F..%2Fetc/infer", ModelPath("../../etc", "", "infer")),
        (b"/v2/models/a+b/infer", ModelPath("a+b", "", "infer")),
    ],
)
def test_a_model_path_names_model_version_and_action(path: bytes, found: ModelPath) -> None:
    assert parse_model_path(path) == found


@pytest.mark.parametrize(
    "path",
    [
        b"",
        b"/v2/models/",
        b"/v2/models//infer",
        b"/v2/models/m/",
        b"/v2/models/m/other",
        b"/v2/models/m/infer/",
        b"/v2/models/m/infer/more",
        b"/v2/models/m/versions",
        b"/v2/models/m/versions/",
        b"/v2/models/m/versions//infer",
        b"/v1/models/m/infer",
        b"/v2/models/" + b"m" * 5000,
    ],
)
def test_what_is_no_model_path_is_none(path: bytes) -> None:
    assert parse_model_path(path) is None


@given(
    st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), min_size=1, max_size=30).filter(lambda t: t.strip())
)
def test_every_legal_name_comes_back_from_its_encoded_path(name: str) -> None:
    found = parse_model_path(f"/v2/models/{quote(name, safe='')}/infer".encode())
    assert found == ModelPath(name, "", "infer")


@given(st.binary(max_size=60))
def test_any_path_is_a_model_path_none_or_refused(rest: bytes) -> None:
    try:
        parse_model_path(b"/v2/models/" + rest)
    except InvalidInput as e:
        assert "model" in e.message  # noqa: PT017 - either outcome is right


def read(*headers: tuple[bytes, bytes]) -> h.Found:
    found: h.Found = {}
    h.read_headers(headers, found)
    return found


def test_headers_that_may_come_once_are_refused_twice_and_others_are_not() -> None:
    found = read((b"x-request-id", b"a"), (b"x-request-id", b"b"), (b"cookie", b"c"), (b"cookie", b"d"))
    assert found == {b"x-request-id": b"a"}
    with pytest.raises(InvalidInput, match="Headrace-Service"):
        read((b"headrace-service", b"a"), (b"headrace-service", b"a"))


def test_a_refused_head_is_still_read_to_its_end() -> None:
    found: h.Found = {}
    with pytest.raises(InvalidInput):
        h.read_headers([(b"authorization", b"a"), (b"authorization", b"b"), (b"content-length", b"5")], found)
    assert found[b"content-length"] == b"5"


def test_an_encoding_is_read_as_what_it_means_or_refused_by_name() -> None:
    assert read((b"content-encoding", b"Identity")) == {}
    assert read((b"content-encoding", b"X-GZIP")) == {b"content-encoding": b"gzip"}
    with pytest.raises(InvalidInput, match="br"):
        read((b"content-encoding", b"br"))


def test_error_heads_carry_code_retry_and_challenge() -> None:
    assert b"retry-after: 1\r\n" in error_head(QueueFull("full"))
    assert b"headrace-error: queue-full\r\n" in error_head(QueueFull("full"))
    assert b"www-authenticate: Bearer\r\n" in error_head(Unauthenticated("who?"))
    assert error_head(InvalidInput("no"), 408).startswith(b"HTTP/1.1 408 Request Timeout\r\n")


@given(st.text())
def test_every_message_makes_a_body(message: str) -> None:
    assert error_body(HeadraceError(message)).startswith(b'{"error":')


def test_a_message_that_no_utf8_can_carry_is_escaped() -> None:
    assert error_body(HeadraceError("name '\ud800'")) == b'{"error":"name \'\\\\ud800\'"}'


def test_every_latency_falls_in_one_bucket() -> None:
    counters = DoorCounters()
    for seconds in (0.0, BOUNDS_S[0], 0.0031, 60.0, 1e6):
        counters.ended("m", "ok", seconds)
    assert sum(counters.buckets) == 5
    assert counters.buckets[0] == 2
    assert counters.buckets[-1] == 1
