"""What the benchmark computes from its samples: a benchmark that counts wrong is worse than none."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))

import bodies
import measure
import open_loop


def test_percentiles_come_from_the_histogram_and_not_from_its_order() -> None:
    histogram = [[9000, 1], [1000, 98], [5000, 1]]
    assert measure.percentile_ms(histogram, 50) == 1.0
    assert measure.percentile_ms(histogram, 99) == 5.0
    assert measure.percentile_ms(histogram, 100) == 9.0


def test_a_stall_is_charged_to_every_request_that_should_have_left_meanwhile() -> None:
    async def stalling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                await gate.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        except asyncio.IncompleteReadError:
            writer.close()
            await writer.wait_closed()

    async def scenario() -> list:
        server = await asyncio.start_server(stalling, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        asyncio.get_running_loop().call_later(1.0, gate.set)
        async with server:
            return await open_loop.run(port, [b"GET / HTTP/1.1\r\n\r\n"], 100, 0.5)

    gate = asyncio.Event()
    results = asyncio.run(scenario())
    assert len(results) > 20
    assert all(latency is not None and status == 200 for _, latency, status in results)
    assert max(latency for _, latency, _ in results) > 0.5


def test_an_unanswered_request_counts_as_lost() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()

    async def scenario() -> list:
        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await open_loop.run(port, [b"GET / HTTP/1.1\r\n\r\n"], 50, 0.2)

    results = asyncio.run(scenario())
    assert results
    assert all(latency is None for _, latency, _ in results)


@pytest.mark.parametrize(("low", "high"), [(8, 256), (4, 32)])
def test_the_lengths_stay_in_their_range_and_are_the_same_each_time(low: int, high: int) -> None:
    counts = bodies.lengths(low, high)
    assert counts == bodies.lengths(low, high)
    assert low <= min(counts) < max(counts) <= high


def test_all_stacks_get_the_same_values() -> None:
    row = bodies.minilm_rows([9])[0]
    flat = json.loads(bodies.plain("/x", row).split(b"\r\n\r\n", 1)[1])
    oip = json.loads(bodies.oip_json("/x", row, "INT64").split(b"\r\n\r\n", 1)[1])
    assert {t["name"]: t["data"] for t in oip["inputs"]} == flat == row


def test_every_key_of_the_latest_results_has_its_raw_samples() -> None:
    results = Path(__file__).parents[2] / "bench" / "results"
    latest = results / "latest.json"
    if not latest.exists():
        pytest.skip("no benchmark has been run in this checkout")
    keys = json.loads(latest.read_text())
    raw = {json.loads(f.read_text())["case"] for f in (results / "raw").glob("*.json")}
    prefixes = {"slow_worker": "online.slow_worker", "tiny": "online.tiny", "minilm": "online.minilm"}
    prefixes |= {"mixed": "online.mixed", "short": "online.short"}
    covered = tuple(p for case, p in prefixes.items() if case in raw)
    assert all(k.startswith(covered) for k in keys if k.startswith("online."))
