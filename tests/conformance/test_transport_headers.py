"""transport/headers.py: what clients of the doors may send and are sent, on both transports."""

from __future__ import annotations

import pytest

from tests.support.transports import Transports
from tests.support.waiting import Inbox
from transport.base import PayloadOverLimit
from transport.headers import format_headers, parse_headers


async def test_headers_arrive_in_order_with_lower_case_names(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    got = Inbox()
    await a.subscribe_with_headers("door.*", lambda s, r, p, h: got.append((s, r, p, h)))
    b.publish_with_headers("door.x", b"body", [("Headrace-Status", "200"), ("X-Two", "1"), ("x-two", "ä: b")])
    b.publish("door.y", b"bare", "_INBOX.y")
    await got.has(2)
    headers = [(b"headrace-status", b"200"), (b"x-two", b"1"), (b"x-two", "ä: b".encode())]
    assert got == [("door.x", "", b"body", headers), ("door.y", "_INBOX.y", b"bare", [])]


async def test_a_plain_subscriber_does_not_see_them(transports: Transports) -> None:
    a, b = await transports.make(), await transports.make()
    got = Inbox()
    await a.subscribe("door", lambda s, r, p: got.append(p))
    b.publish_with_headers("door", b"body", [("a", "b")])
    await got.has(1)
    assert got == [b"body"]


async def test_headers_count_for_the_limit(transports: Transports) -> None:
    a = await transports.make()
    body = bytes(a.max_payload - 10)
    with pytest.raises(PayloadOverLimit):
        a.publish_with_headers("door", body, [("name", "value")])
    a.publish_with_headers("door", body[: -len(format_headers([("name", "value")]))], [("name", "value")])
    assert a.is_connected


@pytest.mark.parametrize("field", [("a", "b\r\nc: d"), ("a\n", "b"), ("", "b"), ("a:b", "c"), ("a", "b\0")])
def test_a_field_that_would_be_read_as_another_is_refused(field: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="no header field"):
        format_headers([field])


def test_what_is_no_field_is_left_out() -> None:
    assert parse_headers(b"NATS/1.0 503\r\n\r\n") == []
    assert parse_headers(b"") == []
    assert parse_headers(b"NATS/1.0\r\nno colon\r\n:no name\r\nA:b\r\n\r\n") == [(b"a", b"b")]
