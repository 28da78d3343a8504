"""Messages survive the wire, foreign bytes never crash a reader, minor versions read each other."""

import contextlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import envelope
from contract.envelope import BadEnvelope, pack, unpack
from contract.messages import (
    BlobRef,
    CancelMessage,
    Layout,
    ReplyMessage,
    RequestHead,
    RequestMessage,
    ResultHead,
    TensorHead,
)

U53 = st.integers(0, 2**53)
SHORT = st.text(max_size=12)
SHAPES = st.lists(st.integers(0, 9), max_size=4).map(tuple)
HEADS = st.builds(TensorHead, SHORT, st.sampled_from(["FP32", "BYTES", "INT64"]), SHAPES)
LAYOUTS = st.lists(st.builds(Layout, st.lists(HEADS, max_size=3).map(tuple)), max_size=3)
PARAMETERS = st.dictionaries(SHORT, st.one_of(st.booleans(), U53, SHORT), max_size=3)
BLOBS = st.none() | st.builds(BlobRef, SHORT, SHORT, st.integers(0, 99), U53)
SIZES = st.lists(U53, max_size=3).map(tuple)
REQUESTS = st.builds(
    RequestHead,
    id=U53,
    layout=st.integers(0, 3),
    rows=st.integers(0, 99),
    deadline_unix_ms=U53,
    admitted_unix_us=U53,
    sizes=SIZES,
    priority=st.integers(0, 9),
    request_id=SHORT,
    caller_id=SHORT,
    parameters=PARAMETERS,
    blob=BLOBS,
)
RESULTS = st.builds(ResultHead, id=U53, layout=st.integers(-1, 3), sizes=SIZES, message=SHORT, blob=BLOBS)
MESSAGES = st.one_of(
    st.builds(RequestMessage, SHORT, SHORT, SHORT, SHORT, LAYOUTS, st.lists(REQUESTS, max_size=3)),
    st.builds(ReplyMessage, SHORT, SHORT, SHORT, LAYOUTS, st.lists(RESULTS, max_size=3)),
    st.builds(CancelMessage, SHORT, st.lists(U53, max_size=5), U53),
)


@given(MESSAGES, st.lists(st.binary(max_size=20), max_size=4))
def test_a_message_and_its_body_come_back_from_the_wire(message: object, parts: list[bytes]) -> None:
    again, body = unpack(type(message), pack(message, parts))
    assert again == message
    assert bytes(body) == b"".join(parts)


@given(st.binary(max_size=64))
def test_foreign_bytes_are_refused_and_never_crash_the_reader(payload: bytes) -> None:
    with pytest.raises(BadEnvelope):
        unpack(RequestMessage, payload)


@given(MESSAGES, st.data())
def test_a_truncated_message_is_refused(message: object, data: st.DataObject) -> None:
    whole = pack(message)
    with pytest.raises(BadEnvelope):
        unpack(type(message), whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(MESSAGES, st.binary(min_size=1, max_size=3), st.data())
def test_a_damaged_header_raises_nothing_but_bad_envelope(message: object, noise: bytes, data: st.DataObject) -> None:
    whole = bytearray(pack(message))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at : at + len(noise)] = noise
    with contextlib.suppress(BadEnvelope):
        unpack(type(message), bytes(whole))


def test_a_message_of_another_kind_is_refused() -> None:
    with pytest.raises(BadEnvelope, match="kind 3, expected 1"):
        unpack(RequestMessage, pack(CancelMessage("g", [1], 2)))


def test_another_major_version_is_refused_by_both_numbers() -> None:
    payload = bytearray(pack(CancelMessage("g", [1], 2)))
    payload[0] = 9
    with pytest.raises(BadEnvelope, match=r"format 9\.\d+, this process reads 1\.x"):
        unpack(CancelMessage, bytes(payload))


class _NewerCancel(msgspec.Struct, array_like=True):
    gateway: str
    ids: list[int]
    deadline_unix_ms: int
    why: str = "left"


def test_a_field_that_a_newer_minor_version_appended_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(envelope._KINDS, _NewerCancel, envelope._KINDS[CancelMessage])
    monkeypatch.setattr(envelope, "FORMAT_MINOR", 1)
    assert unpack(CancelMessage, pack(_NewerCancel("g", [1, 2], 3)))[0] == CancelMessage("g", [1, 2], 3)


def test_a_field_that_an_older_minor_version_lacks_gets_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(envelope._KINDS, _NewerCancel, envelope._KINDS[CancelMessage])
    monkeypatch.setitem(envelope._DECODERS, _NewerCancel, msgspec.msgpack.Decoder(_NewerCancel))
    assert unpack(_NewerCancel, pack(CancelMessage("g", [1], 3)))[0].why == "left"
