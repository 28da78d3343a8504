"""What the fuzzer calls: one function per input format, which raises where an invariant does not hold.

The outcome of any bytes is a value that fits, or a refusal in words: never another exception, never a hang.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from contract.errors import InvalidInput, TooLarge
from contract.model_config import ModelCard, ModelConfig, TensorSpec
from contract.tensors import DATATYPES, byte_size, num_elements
from gateway.http.compression import Inflater
from gateway.oip.binary import header_length
from gateway.oip.decode import decode
from workers.repository import pbtxt
from workers.repository.convert import to_model_config
from workers.repository.refusal import ConfigRefused

MAX_INFLATED_BYTES = 1_000_000
MAX_WORDS = 2_000
CARDS = [
    ModelCard(ModelConfig("flat", "python", inputs=(TensorSpec("IN", datatype, (-1,)),)), ()) for datatype in DATATYPES
] + [
    ModelCard(
        ModelConfig(
            "two",
            "python",
            max_batch_size=4,
            inputs=(TensorSpec("IN", "FP32", (2,)), TensorSpec("B", "BYTES", (1,), is_optional=True)),
            outputs=(TensorSpec("OUT", "FP32", (2,)), TensorSpec("TEXT", "BYTES", (1,))),
        ),
        (),
    )
]
POSITION = re.compile(r"config\.pbtxt:[0-9]+:[0-9]+: ")


def binary_request(data: bytes) -> None:
    """First byte: the model. Up to the first line feed: the header's value. The rest: the body."""
    value, _, body = data[1:].partition(b"\n")
    card = CARDS[data[0] % len(CARDS)] if data else CARDS[0]
    try:
        length = header_length([value.decode("latin-1")] if value else [])
        decoded = decode(body, length, card)
    except (InvalidInput, TooLarge) as refusal:
        _check_words(refusal.message)
        return
    assert decoded.payload_bytes == sum(map(len, decoded.data))
    specs = {spec.name: spec for spec in card.config.inputs}
    for head, part in zip(decoded.heads, decoded.data, strict=True):
        wanted = byte_size(head.datatype, head.shape)
        assert head.datatype == specs[head.name].datatype
        assert wanted == len(part) if wanted is not None else len(part) >= 4 * num_elements(head.shape)


def config_pbtxt(data: bytes) -> None:
    """The bytes of a config file."""
    try:
        triton = pbtxt.parse(pbtxt.decode(data, "config.pbtxt"), "config.pbtxt")
    except ConfigRefused as refusal:
        _check_words(str(refusal))
        _check_position(str(refusal))
        return
    try:
        config = to_model_config(triton, triton.get("name", "") or "m")
    except ConfigRefused as refusal:
        _check_words(str(refusal))
        return
    assert pbtxt.without_defaults(pbtxt.with_defaults(triton)) == triton
    assert [spec.name for spec in config.inputs] == [tensor["name"] for tensor in triton.get("input", [])]


def compressed_body(data: bytes) -> None:
    """First byte: the coding. The rest: the body."""
    inflater = Inflater("gzip" if data[:1] < b"\x80" else "deflate", data[1:], MAX_INFLATED_BYTES)
    try:
        while not inflater.is_complete:
            inflater.step(4096)
            assert len(inflater.body) <= MAX_INFLATED_BYTES
    except (InvalidInput, TooLarge) as refusal:
        _check_words(refusal.message)


def _check_words(message: str) -> None:
    assert 0 < len(message) < MAX_WORDS, message


def _check_position(message: str) -> None:
    assert POSITION.match(message) or "is not UTF-8" in message, message


TARGETS: dict[str, Callable[[bytes], None]] = {
    "binary_request": binary_request,
    "config_pbtxt": config_pbtxt,
    "compressed_body": compressed_body,
}
