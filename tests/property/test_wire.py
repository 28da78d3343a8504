"""The protocol parser: any cut of the same bytes into reads gives the same callbacks; foreign bytes are refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transport.wire import MAX_CONTROL_LINE, BadProtocol, Parser

Seen = list[tuple[bytes, ...]]
tokens = st.text("abcXYZ0.9_", min_size=1, max_size=12).map(str.encode)
messages = st.tuples(
    st.sampled_from([b"1", b"22", b"999"]),
    tokens,
    st.one_of(st.just(b""), tokens),
    st.binary(max_size=200),
    st.one_of(st.none(), st.just(b"NATS/1.0 503\r\n\r\n"), st.just(b"NATS/1.0\r\nA: b\r\n\r\n")),
)
controls = st.sampled_from([b"PING", b"PONG", b"+OK", b'INFO {"a":1}', b"-ERR 'x'"])


def on_wire(item: object) -> bytes:
    if isinstance(item, bytes):
        return item + b"\r\n"
    sid, subject, reply, payload, header = item  # type: ignore[misc]
    middle = b" ".join(filter(None, (subject, sid, reply)))
    if header is None:
        return b"MSG %b %d\r\n%b\r\n" % (middle, len(payload), payload)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (middle, len(header), len(header) + len(payload), header, payload)


def make() -> tuple[Parser, Seen]:
    seen: Seen = []
    routes = {
        sid: lambda subject, reply, payload, header, sid=sid: seen.append((sid, subject, reply, payload, header))
        for sid in (b"1", b"22")
    }
    return Parser(routes, lambda line: seen.append((line,))), seen


@given(items=st.lists(st.one_of(messages, controls), max_size=8), cuts=st.lists(st.integers(0, 3000), max_size=12))
def test_any_cut_gives_the_same_callbacks(items: list[object], cuts: list[int]) -> None:
    data = b"".join(map(on_wire, items))
    parser, seen = make()
    edges = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        parser.feed(data[start:end])
    expected: Seen = []
    for item in items:
        if isinstance(item, bytes):
            expected.append((item,))
        else:
            sid, subject, reply, payload, header = item  # type: ignore[misc]
            if sid != b"999":
                expected.append((sid, subject, reply, payload, header or b""))
    assert seen == expected


def test_a_large_message_in_small_reads_is_joined_once() -> None:
    parser, seen = make()
    data = on_wire((b"1", b"s", b"", bytes(1_000_000), None))
    for start in range(0, len(data), 1000):
        parser.feed(data[start : start + 1000])
    assert len(seen) == 1
    assert len(seen[0][3]) == 1_000_000


def test_a_callback_that_raises_does_not_stop_the_stream() -> None:
    seen: list[bytes] = []

    def callback(subject: bytes, reply: bytes, payload: bytes, header: bytes) -> None:
        seen.append(payload)
        raise ValueError(payload)

    parser = Parser({b"1": callback}, lambda line: None)
    parser.feed(on_wire((b"1", b"s", b"", b"a", None)) + on_wire((b"1", b"s", b"", b"b", None)))
    assert seen == [b"a", b"b"]


@pytest.mark.parametrize(
    "line", [b"MSG a 1 xyz\r\n", b"MSG a 1 -9\r\n", b"MSG a 1 99999999999\r\n", b"HMSG a 1 2 x\r\n", b"MSG\r\n"]
)
def test_an_unreadable_message_line_is_refused(line: bytes) -> None:
    parser, _ = make()
    with pytest.raises(BadProtocol):
        parser.feed(line)


def test_bytes_without_a_line_end_are_not_collected_for_ever() -> None:
    parser, _ = make()
    with pytest.raises(BadProtocol):
        parser.feed(b"x" * (MAX_CONTROL_LINE + 1))


def test_reset_forgets_what_was_half_read() -> None:
    for half in (b"MSG s 1 5\r\nab", b"MSG s"):
        parser, seen = make()
        parser.feed(half)
        parser.reset()
        parser.feed(on_wire((b"1", b"s", b"", b"whole", None)))
        assert [s[3] for s in seen] == [b"whole"]
