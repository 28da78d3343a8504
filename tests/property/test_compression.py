"""Bodies in gzip and deflate: whatever the bytes, they come out whole or are refused, within their bounds."""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.errors import InvalidInput, TooLarge
from gateway.http import compression
from gateway.http.compression import Inflater, coding_of, compressed, wanted_coding

LIMIT = 100_000
CODINGS = ("gzip", "deflate")


def inflate(coding: str, body: bytes, step_bytes: int = 777) -> bytes:
    inflater = Inflater(coding, body, LIMIT)
    num_steps = 0
    while not inflater.is_complete:
        inflater.step(step_bytes)
        num_steps += 1
        assert len(inflater.body) <= LIMIT + 1
        assert num_steps <= 3 + len(body) + LIMIT // step_bytes
    return bytes(inflater.body)


@given(
    st.sampled_from(CODINGS),
    st.lists(st.one_of(st.binary(max_size=3000), st.integers(0, 9000).map(bytes)), max_size=8),
    st.integers(1, 200_000),
)
def test_what_is_compressed_comes_back_in_steps_of_any_size(coding: str, parts: list[bytes], step_bytes: int) -> None:
    assert inflate(coding, b"".join(compressed(coding, parts)), step_bytes) == b"".join(parts)


@given(st.sampled_from(CODINGS), st.binary(max_size=400), st.sampled_from([b"", b"\x1f\x8b\x08", b"\x78\x9c", b"\x78"]))
def test_any_bytes_end_in_a_body_or_in_a_refusal(coding: str, noise: bytes, start: bytes) -> None:
    with contextlib.suppress(InvalidInput, TooLarge):
        assert len(inflate(coding, start + noise)) <= LIMIT


@given(st.sampled_from(CODINGS), st.binary(min_size=1, max_size=2000), st.data())
def test_one_changed_or_missing_byte_never_changes_the_body_in_silence(
    coding: str, body: bytes, data: st.DataObject
) -> None:
    packed = b"".join(compressed(coding, [body]))
    at = data.draw(st.integers(0, len(packed) - 1))
    cut = packed[:at]
    with pytest.raises(InvalidInput):
        inflate(coding, cut)
    changed = cut + bytes([packed[at] ^ data.draw(st.integers(1, 255))]) + packed[at + 1 :]
    with contextlib.suppress(InvalidInput, TooLarge):
        # gzip's own header has bytes that mean nothing; what has no zlib header is taken for bare deflate.
        assert inflate(coding, changed) == body or (coding == "deflate" and at < 2)


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
@pytest.mark.parametrize("size", [LIMIT - 1, LIMIT, LIMIT + 1, 50 * LIMIT])
def test_the_limit_is_exact(pack: Callable[[bytes], bytes], size: int) -> None:
    coding, body = ("gzip" if pack is gzip.compress else "deflate"), pack(bytes(size))
    if size <= LIMIT:
        assert inflate(coding, body) == bytes(size)
    else:
        with pytest.raises(TooLarge, match=str(LIMIT)):
            inflate(coding, body)


def test_a_step_takes_in_no_more_than_it_may_though_nothing_comes_out() -> None:
    deflater = zlib.compressobj(wbits=31)
    empty_blocks = deflater.flush(zlib.Z_FULL_FLUSH) + b"\x00\x00\x00\xff\xff" * 400_000
    inflater = Inflater("gzip", empty_blocks, LIMIT)
    inflater.step()
    assert not inflater.is_complete
    assert inflater._at <= compression.STEP_BYTES + compression._PIECE_BYTES
    with pytest.raises(InvalidInput, match="cut off"):
        inflater.step()


@given(st.binary(max_size=80), st.integers(0, 5000))
def test_any_accept_encoding_has_an_answer(header: bytes, num_bytes: int) -> None:
    assert wanted_coding(header, num_bytes)[0] in ("", *CODINGS)


@given(st.binary(max_size=80))
def test_any_content_encoding_is_known_or_refused(header: bytes) -> None:
    with contextlib.suppress(InvalidInput):
        assert coding_of(header) in ("", *CODINGS)
