"""Binary requests whose announced sizes are wrong: 400 that names what lies, and the connection goes on."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from tests.cases.conftest import Server
from tests.support.cluster_http import HEADER_LENGTH, Answered, Connection, binary_request

DATA = np.array([[1.0, 2.0, 3.0, 4.0]], dtype=np.float32)
BODY, RIGHT = binary_request(DATA)
JSON_BYTES = int(RIGHT[0][1])
PATH = "/v2/models/ident_f32/infer"


def with_size(size: Any) -> tuple[bytes, list[tuple[str, str]]]:
    head = json.loads(BODY[:JSON_BYTES])
    head["inputs"][0]["parameters"]["binary_data_size"] = size
    text = json.dumps(head).encode()
    return text + DATA.tobytes(), [(HEADER_LENGTH, str(len(text)))]


def header(value: str) -> list[tuple[str, str]]:
    return [(HEADER_LENGTH, value)]


LIES: dict[str, tuple[bytes, list[tuple[str, str]], str]] = {
    "one less": (BODY, header(str(JSON_BYTES - 1)), ""),
    "one more": (BODY, header(str(JSON_BYTES + 1)), ""),
    "zero with JSON there": (BODY, header("0"), ""),
    "negative": (BODY, header("-1"), HEADER_LENGTH),
    "letters": (BODY, header("abc"), HEADER_LENGTH),
    "empty": (BODY, header(""), HEADER_LENGTH),
    "beyond the body": (BODY, header("9999999999"), HEADER_LENGTH),
    "beyond 64 bits": (BODY, header("9" * 30), HEADER_LENGTH),
    "a float": (BODY, header(f"{JSON_BYTES}.0"), HEADER_LENGTH),
    "with a plus": (BODY, header(f"+{JSON_BYTES}"), HEADER_LENGTH),
    "in hexadecimal": (BODY, header(hex(JSON_BYTES)), HEADER_LENGTH),
    "two that differ": (BODY, [*header(str(JSON_BYTES)), *header(str(JSON_BYTES - 1))], HEADER_LENGTH),
    "size 15": (*with_size(15), "INPUT0"),
    "size 17": (*with_size(17), "INPUT0"),
    "size -4": (*with_size(-4), "INPUT0"),
    "size as text": (*with_size("16"), "INPUT0"),
    "size as float": (*with_size(16.5), "INPUT0"),
    "size true": (*with_size(True), "INPUT0"),
    "size null": (*with_size(None), "INPUT0"),
    "size beyond 64 bits": (*with_size(2**70), "INPUT0"),
    "three surplus bytes": (BODY + b"xyz", RIGHT, ""),
    "three bytes too few": (BODY[:-3], RIGHT, "INPUT0"),
}


async def right(connection: Connection) -> Answered:
    answer = await connection.ask("POST", PATH, BODY, RIGHT)
    assert answer.binary() == DATA.tobytes()
    return answer


@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_is_named_and_no_left_over_byte_is_read_as_a_request(
    server: Server, lie: str, is_compressed: bool
) -> None:
    body, headers, named = LIES[lie]
    if is_compressed:
        body, headers = gzip.compress(body), [*headers, ("content-encoding", "gzip")]
    connection = Connection(server.port)
    await right(connection)
    answer = await connection.ask("POST", PATH, body, headers)
    assert answer.status == 400, (answer.status, answer.body[:300])
    assert named.lower() in answer.error.lower()
    assert answer.took_s < 1
    assert answer.headers.get("connection") != "close"
    await right(connection)
    connection.close()


@pytest.mark.parametrize(
    ("coding", "body", "told"),
    [
        ("gzip", BODY, "no valid gzip"),
        ("gzip", gzip.compress(BODY)[:-4], "cut off"),
        ("gzip", gzip.compress(BODY) + b"GET / HTTP/1.1\r\n\r\n", "left over"),
        ("deflate", BODY, "no valid deflate"),
        ("br", BODY, "'br'"),
        ("gzip, gzip", gzip.compress(gzip.compress(BODY)), "'gzip, gzip'"),
        ("identity", BODY[:-1], "INPUT0"),
    ],
)
async def test_an_encoding_that_lies_is_told_in_words(server: Server, coding: str, body: bytes, told: str) -> None:
    connection = Connection(server.port)
    await right(connection)
    answer = await connection.ask("POST", PATH, body, [*RIGHT, ("content-encoding", coding)])
    assert answer.status == 400
    assert told in answer.error
    await right(connection)
    connection.close()


async def test_only_the_right_length_is_answered(server: Server) -> None:
    connection = Connection(server.port)
    lengths = range(JSON_BYTES - 20, len(BODY) + 3)
    statuses = {n: (await connection.ask("POST", PATH, BODY, header(str(n)))).status for n in lengths}
    assert [n for n, status in statuses.items() if status == 200] == [JSON_BYTES]
    assert set(statuses.values()) == {200, 400}
    connection.close()


async def test_json_of_the_whole_length_needs_no_binary_part(server: Server) -> None:
    body = json.dumps({"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 1], "data": [7.0]}]}).encode()
    connection = Connection(server.port)
    assert (await connection.ask("POST", PATH, body, header(str(len(body))))).data == [7.0]
    connection.close()
