"""gzip and deflate bodies: which coding is meant, and bytes into and out of it piece by piece. Pure; awaits nothing.

    Content-Encoding: gzip          → Inflater.step, step, … → the body, or TooLarge before it is held
    Accept-Encoding: gzip, deflate  → wanted_coding → compressed

`deflate` is zlib's format, as HTTP defines it; the bare deflate stream that some callers send instead is taken too.

Invariants: whatever the bytes, an Inflater holds at most `max_bytes` and one step more, and every step ends
(tests/property/test_compression.py).

Source: RFC 9110, 8.4.1 and 12.5.3; RFC 1950, 1951, 1952.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from contract.errors import InvalidInput, TooLarge

STEP_BYTES: Final = 1024 * 1024
"""What one step takes in or gives out at most: a few milliseconds."""
MIN_BYTES: Final = 1024
"""A smaller answer is compressed only for a caller that names a single coding."""
_PIECE_BYTES: Final = 64 * 1024  # what zlib leaves over of its input is copied at each step, so that it gets little
_SAMPLE_BYTES: Final = 16 * 1024
_MIN_SAVED: Final = 0.1  # of the size; less is not worth the caller's and our time
_LEVEL: Final = 1  # 6 takes three times as long and saves a few per cent more
_MAX_ACCEPT_BYTES: Final = 256
_CODINGS: Final = {b"gzip": "gzip", b"x-gzip": "gzip", b"deflate": "deflate"}
_WINDOW_BITS: Final = {"gzip": 31, "deflate": 15}
_BARE_DEFLATE: Final = -15


def coding_of(content_encoding: bytes) -> str:
    """`gzip`, `deflate`, or empty for a body that is sent as it is.

    Raises:
        InvalidInput: any other coding, or several.
    """
    name = content_encoding.strip().lower()
    if name in (b"", b"identity"):
        return ""
    coding = _CODINGS.get(name)
    if coding is None:
        raise InvalidInput(
            f"Content-Encoding {content_encoding[:64].decode('latin-1')!r} is not supported, "
            f"send the body as it is or in one of gzip and deflate"
        )
    return coding


def wanted_coding(accept_encoding: bytes, num_bytes: int) -> tuple[str, bool]:
    """The coding for an answer of this size, empty to send it as it is; and whether the caller asks for it alone."""
    coding, is_only = _preferred(accept_encoding[:_MAX_ACCEPT_BYTES])
    return (coding if is_only or num_bytes >= MIN_BYTES else ""), is_only


class Inflater:
    """One compressed body on its way to the plain one."""

    def __init__(self, coding: str, body: bytes | bytearray, max_bytes: int) -> None:
        self._coding = coding
        self._input = memoryview(body)
        self._at = 0
        self._left = b""  # input that zlib has not taken yet
        self._max_bytes = max_bytes
        self._zlib = zlib.decompressobj(_window_bits(coding, body))
        self.body = bytearray()
        """What has come out so far."""
        self.is_complete = False

    def step(self, max_bytes: int = STEP_BYTES) -> None:
        """Take in, or give out, up to `max_bytes` more.

        Raises:
            InvalidInput: the body is no such stream, ends too early or goes on behind its end.
            TooLarge: the plain body is over the limit.
        """
        taken_until, given_until = self._at + max_bytes, len(self.body) + max_bytes
        while not self.is_complete and self._at < taken_until and len(self.body) < given_until:
            piece = self._left or self._next_piece()
            num_bytes = len(self.body)
            try:
                self.body += self._zlib.decompress(piece, min(given_until, self._max_bytes + 1) - num_bytes)
            except zlib.error as e:
                reason = str(e).removeprefix("Error -3 while decompressing data: ")
                raise InvalidInput(f"the body is no valid {self._coding}: {reason}") from None
            if len(self.body) > self._max_bytes:
                raise TooLarge(f"the body has over {self._max_bytes} bytes when decompressed, which is the limit")
            self._left = self._zlib.unconsumed_tail
            self._look_for_the_end(is_starved=not piece and len(self.body) == num_bytes)

    def _next_piece(self) -> memoryview:
        piece = self._input[self._at : self._at + _PIECE_BYTES]
        self._at += len(piece)
        return piece

    def _look_for_the_end(self, *, is_starved: bool) -> None:
        if self._zlib.eof:
            left = len(self._zlib.unused_data) + len(self._input) - self._at
            if left:
                raise InvalidInput(f"{left} bytes are left over behind the end of the body's {self._coding} stream")
            self.is_complete = True
        elif is_starved:
            raise InvalidInput(f"the body is cut off: its {self._coding} stream has no end")


def compressed(coding: str, parts: Sequence[bytes | memoryview]) -> list[bytes]:
    """The parts as one compressed body, in pieces."""
    deflater = zlib.compressobj(_LEVEL, wbits=_WINDOW_BITS[coding])
    return [*filter(None, map(deflater.compress, parts)), deflater.flush()]


def is_compressible(parts: Sequence[bytes | memoryview]) -> bool:
    """Whether it is worth the time, judged by the start of the largest part: random floats are not, text is."""
    sample = max(parts, key=len)[:_SAMPLE_BYTES]
    return len(zlib.compress(sample, _LEVEL)) < len(sample) * (1 - _MIN_SAVED)


def _window_bits(coding: str, body: bytes | bytearray) -> int:
    if coding == "deflate" and not _is_zlib(body[:2]):
        return _BARE_DEFLATE
    return _WINDOW_BITS[coding]


def _is_zlib(start: bytes | bytearray) -> bool:
    return len(start) == 2 and start[0] & 0x0F == 8 and int.from_bytes(start, "big") % 31 == 0


@lru_cache(maxsize=64)
def _preferred(accept_encoding: bytes) -> tuple[str, bool]:
    """The coding, and whether it is the only thing named: so tritonclient asks, while libraries list what they know."""
    weights: dict[str, float] = {}
    for item in accept_encoding.decode("latin-1").lower().split(","):
        name, _, parameters = item.partition(";")
        weights[name.strip()] = _weight(parameters)
    weights.pop("", None)
    if "x-gzip" in weights:
        weights.setdefault("gzip", weights.pop("x-gzip"))
    found = {name: weights.get(name, weights.get("*", 0.0)) for name in _WINDOW_BITS}
    best = max(found, key=lambda name: found[name])  # gzip stands first and wins a tie
    if found[best] <= 0 or found[best] < weights.get("identity", 0.0):
        return "", False
    return best, len(weights) == 1 and "*" not in weights


def _weight(parameters: str) -> float:
    name, _, value = parameters.partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return float(value)
    except ValueError:
        return 0.0
