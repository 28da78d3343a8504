"""However a stream of requests is cut into reads, and whenever each is answered, the answers are the same, in order."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from uvicorn.server import ServerState

from gateway.http.doorway import Doorway
from gateway.http.protocol import HttpProtocol
from gateway.http.routes import build_app
from gateway.http.server import uvicorn_config
from gateway.settings import GatewaySettings
from tests.support.http_kit import EchoCore, floats, get, http, identify


class Wire(asyncio.Transport):
    """A transport that keeps what is written; `is_full` is a caller that does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        assert not self.is_closed
        self.written += bytes(data)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def can_write_eof(self) -> bool:
        return False

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


KINDS = {
    "infer": lambda at: http(floats(at, id=f"r{at}")),
    "bad": lambda at: http(b"{" * at),
    "live": lambda at: get("/v2/health/live", f"x-request-id: r{at}"),
    "lost": lambda at: get(f"/nowhere/{at}"),
    "chunked": lambda at: (
        http(b"", "Transfer-Encoding: chunked")
        + b"%x\r\n%b\r\n0\r\n\r\n" % (len(floats(at, id=f"r{at}")), floats(at, id=f"r{at}"))
    ),
}
STATUS = {"infer": 200, "chunked": 200, "bad": 400, "live": 200, "lost": 404}


async def answers(reads: list[bytes], late: list[bool], count: int) -> list[tuple[int, Any]]:
    core = EchoCore()
    core.is_holding = True
    settings = GatewaySettings()
    doorway = Doorway(core, identify, settings)
    protocol = HttpProtocol(uvicorn_config(build_app(doorway, settings)), ServerState(), doorway)
    wire = Wire()
    protocol.connection_made(wire)
    for at, read in enumerate(reads):
        protocol.data_received(read)
        if not late[at % len(late)]:
            await _answer_all(core)
    for _ in range(count + 1):
        await _answer_all(core)
    assert doorway.counters.num_in_flight == 0
    assert doorway.receiving_bytes == 0
    return _parse(wire.written)


async def _answer_all(core: EchoCore) -> None:
    for held in core.held:
        held.answer()
    core.held.clear()
    # Every step of a pipeline and of an ASGI task is a turn of the loop; twenty are more than any of them takes.
    for _ in range(20):
        await asyncio.sleep(0)


def _parse(written: bytes) -> list[tuple[int, Any]]:
    found = []
    while written:
        head, _, rest = written.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        length = next(int(line.partition(": ")[2]) for line in lines if line.lower().startswith("content-length"))
        found.append((int(lines[0].split(" ")[1]), json.loads(rest[:length])))
        written = rest[length:]
    return found


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=8),
    st.lists(st.floats(0, 1), max_size=12),
    st.lists(st.booleans(), min_size=1, max_size=5),
)
def test_answers_do_not_depend_on_how_the_bytes_are_cut(kinds: list[str], cuts: list[float], late: list[bool]) -> None:
    stream = b"".join(KINDS[kind](at) for at, kind in enumerate(kinds))
    edges = sorted({0, len(stream), *(int(cut * len(stream)) for cut in cuts)})
    reads = [stream[a:b] for a, b in pairwise(edges)]
    found = asyncio.run(answers(reads, late, len(kinds)))
    assert [status for status, _ in found] == [STATUS[kind] for kind in kinds]
    for at, (kind, (_, body)) in enumerate(zip(kinds, found, strict=True)):
        if kind in ("infer", "chunked"):
            assert body["id"] == f"r{at}"
            assert body["outputs"][0]["data"] == [at]


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300), st.integers(0, 3))
def test_any_bytes_get_answers_or_nothing_and_never_break_the_door(rubbish: bytes, good: int) -> None:
    stream = [http(floats(at, id=f"r{at}")) for at in range(good)]
    found = asyncio.run(answers([*stream, rubbish], [False], good + 300))
    assert [status for status, _ in found[:good]] == [200] * good
    assert all(400 <= status < 500 for status, _ in found[good:])
