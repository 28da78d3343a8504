"""Text is counted in bytes on every path: the same elements, in order, in JSON and in binary form."""

from __future__ import annotations

import asyncio
import json
import struct

import pytest

from tests.cases.conftest import Server
from tests.support.cluster_http import HEADER_LENGTH, Answered, infer

TEXTS = ["plain", "naïve", "日本語", "🙂", "a\x00b", "\u2019"]
NOT_UTF8 = [b"\xff\xfe", b"ok", b"\xc3", b""]


def pack(elements: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(e)) + e for e in elements)


def unpack(raw: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(raw):
        (size,) = struct.unpack_from("<I", raw, at)
        found.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    assert at == len(raw)
    return found


def tensor(shape: list[int], **more: object) -> dict[str, object]:
    return {"name": "INPUT0", "datatype": "BYTES", "shape": shape, **more}


def as_json(texts: list[str], *, wants_binary: bool, shape: list[int] | None = None, escaped: bool = False) -> bytes:
    parameters = {"binary_data_output": wants_binary}
    found = {"inputs": [tensor(shape or [len(texts)], data=texts)], "parameters": parameters}
    return json.dumps(found, ensure_ascii=escaped).encode()


def as_binary(
    elements: list[bytes], *, wants_binary: bool, shape: list[int] | None = None
) -> tuple[bytes, list[tuple[str, str]]]:
    raw = pack(elements)
    found = tensor(shape or [len(elements)], parameters={"binary_data_size": len(raw)})
    text = json.dumps({"inputs": [found], "parameters": {"binary_data_output": wants_binary}}).encode()
    return text + raw, [(HEADER_LENGTH, str(len(text)))]


def elements_of(answer: Answered) -> list[bytes]:
    """A 200's elements as bytes, whatever its form; the JSON part is valid UTF-8."""
    assert answer.status == 200, answer.body
    if HEADER_LENGTH not in answer.headers:
        return [text.encode() for text in json.loads(answer.body.decode("utf-8"))["outputs"][0]["data"]]
    json.loads(answer.body[: int(answer.headers[HEADER_LENGTH])].decode("utf-8"))
    return unpack(answer.binary())


@pytest.mark.parametrize("escaped", [False, True], ids=["utf-8", "escaped"])
@pytest.mark.parametrize("wants_binary", [False, True], ids=["to-json", "to-binary"])
async def test_texts_in_json_come_back_whole(server: Server, wants_binary: bool, escaped: bool) -> None:
    answer = await infer(server.port, "ident_bytes", as_json(TEXTS, wants_binary=wants_binary, escaped=escaped))
    assert elements_of(answer) == [t.encode() for t in TEXTS]


@pytest.mark.parametrize("wants_binary", [False, True], ids=["to-json", "to-binary"])
async def test_texts_in_binary_come_back_whole(server: Server, wants_binary: bool) -> None:
    elements = [t.encode() for t in TEXTS]
    body, headers = as_binary(elements, wants_binary=wants_binary)
    assert elements_of(await infer(server.port, "ident_bytes", body, headers)) == elements


async def test_texts_of_requests_that_share_a_micro_batch_stay_apart(server: Server) -> None:
    for _ in range(5):
        bodies = [as_json([t], wants_binary=n % 2 == 0, shape=[1, 1]) for n, t in enumerate(TEXTS)]
        answers = await asyncio.gather(*(infer(server.port, "ident_bytes_rows", b) for b in bodies))
        assert [elements_of(a) for a in answers] == [[t.encode()] for t in TEXTS]


async def test_rows_of_one_request_stay_apart(server: Server) -> None:
    body = as_json(TEXTS, wants_binary=True, shape=[6, 1])
    assert elements_of(await infer(server.port, "ident_bytes_rows", body)) == [t.encode() for t in TEXTS]


async def test_bytes_that_are_no_utf8_pass_unchanged_in_binary(server: Server) -> None:
    body, headers = as_binary(NOT_UTF8, wants_binary=True)
    assert elements_of(await infer(server.port, "ident_bytes", body, headers)) == NOT_UTF8


async def test_bytes_that_are_no_utf8_are_refused_as_json_with_the_way_out(server: Server) -> None:
    body, headers = as_binary(NOT_UTF8, wants_binary=False)
    answer = await infer(server.port, "ident_bytes", body, headers)
    assert answer.status == 400
    assert "OUTPUT0" in answer.error
    assert "binary" in answer.error


@pytest.mark.parametrize(
    "raw",
    [
        pack([b"abc"])[:-1],
        pack([b"abc"]) + b"\x01",
        struct.pack("<I", 4) + b"abc",
        struct.pack("<I", 0xFFFFFFFF) + b"abc",
        pack([b"a", b"b"]),
        b"",
    ],
    ids=["cut", "surplus", "length too long", "length overflows", "one too many", "none"],
)
async def test_a_length_prefix_that_lies_is_refused(server: Server, raw: bytes) -> None:
    found = tensor([1], parameters={"binary_data_size": len(raw)})
    text = json.dumps({"inputs": [found]}).encode()
    answer = await infer(server.port, "ident_bytes", text + raw, [(HEADER_LENGTH, str(len(text)))])
    assert answer.status == 400, answer.body
    assert "INPUT0" in answer.error


async def test_a_lone_surrogate_in_json_is_refused_or_kept_never_mangled(server: Server) -> None:
    body = b'{"inputs":[{"name":"INPUT0","datatype":"BYTES","shape":[1],"data":["\\ud83d"]}]}'
    answer = await infer(server.port, "ident_bytes", body)
    assert answer.status == 400
    assert answer.error
