"""Format 1.1 on the wire, byte for byte: whoever changes these changes the format and must raise its version.

What 1.0 sent is still read: its request has no `classifications`.
"""

import pytest

from contract.envelope import FORMAT_MAJOR, FORMAT_MINOR, pack, unpack
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

LAYOUT = Layout((TensorHead("x", "FP32", (1, 2)),))
GOLDEN = [
    (
        RequestMessage(
            "g1",
            "_INBOX.g1.r",
            "m",
            "",
            [LAYOUT],
            [
                RequestHead(
                    7,
                    0,
                    1,
                    1_700_000_030_000,
                    1_700_000_000_000_000,
                    request_id="abc",
                    parameters={"k": 1},
                    caller_id="mine",
                )
            ],
        ),
        [b"\0\0\x80?\0\0\0@"],
        "REQUEST",
    ),
    (
        ReplyMessage(
            "w1",
            "m",
            "1",
            [LAYOUT],
            [ResultHead(7, 0, queue_us=5, blob=BlobRef("w1", "b", 2, 3)), ResultHead(8, code="x")],
        ),
        [b"\0\0\x80?\0\0\0@"],
        "REPLY",
    ),
    (CancelMessage("g1", [7, 8], 1_700_000_030_000), [], "CANCEL"),
]
BYTES_1_0 = {
    "REQUEST": (
        "010001005600000096a26731ab5f494e424f582e67312e72a16da091919193a178a44650333292010291dc0010070001"
        "cf0000018bcfe5dd30cf00060a24181e4000900000a3616263a764656661756c74a081a16b019000c0a46d696e650000803f00000040"
    ),
    "REPLY": (
        "010002003500000095a27731a16da13191919193a178a446503332920102929a070090a0a005008094a27731a1620203"
        "009a08ff90a178a0000080c0000000803f00000040"
    ),
    "CANCEL": ("010003001000000093a26731920708cf0000018bcfe5dd30"),
}


BYTES_1_1 = {
    "REQUEST": (
        "010101005700000096a26731ab5f494e424f582e67312e72a16da091919193a178a44650333292010291dc0011070001"
        "cf0000018bcfe5dd30cf00060a24181e4000900000a3616263a764656661756c74a081a16b019000c0a46d696e6590"
        "0000803f00000040"
    ),
    "REPLY": BYTES_1_0["REPLY"].replace("0100", "0101", 1),
    "CANCEL": BYTES_1_0["CANCEL"].replace("0100", "0101", 1),
}


def test_this_suite_speaks_of_the_current_format() -> None:
    assert (FORMAT_MAJOR, FORMAT_MINOR) == (1, 1)


@pytest.mark.parametrize(("message", "body", "name"), GOLDEN, ids=[g[2] for g in GOLDEN])
def test_a_message_has_exactly_these_bytes(message: object, body: list[bytes], name: str) -> None:
    assert pack(message, body).hex() == BYTES_1_1[name]


@pytest.mark.parametrize("sent", [BYTES_1_0, BYTES_1_1], ids=["1.0", "1.1"])
@pytest.mark.parametrize(("message", "body", "name"), GOLDEN, ids=[g[2] for g in GOLDEN])
def test_these_bytes_read_as_the_message(message: object, body: list[bytes], name: str, sent: dict[str, str]) -> None:
    again, rest = unpack(type(message), bytes.fromhex(sent[name]))
    assert again == message
    assert bytes(rest) == b"".join(body)
