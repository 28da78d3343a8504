"""An open-loop HTTP client: requests leave at their planned moment whether or not earlier ones were answered.

Latency counts from the planned moment, so a stall is not hidden. Keep-alive connections, as many as are needed at once
up to `max_connections`.
"""

import asyncio
import contextlib
import random
import time


async def run(port, requests, rate, seconds, *, timeout_s=5.0, max_connections=512, seed=5):
    """Poisson arrivals of `rate` per second; gives [(planned second, latency seconds or None if lost, status)]."""
    rng = random.Random(seed)
    planned, at = [], 0.0
    while (at := at + rng.expovariate(rate)) < seconds:
        planned.append(at)
    idle, results = [], []
    room = asyncio.Semaphore(max_connections)
    start = time.monotonic() + 0.2

    async def one(moment, request):
        async with room:
            connection = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
            try:
                async with asyncio.timeout(timeout_s):
                    status = await _exchange(*connection, request)
            except (TimeoutError, OSError, asyncio.IncompleteReadError):
                await _close(connection[1])
                results.append((moment, None, 0))
                return
            idle.append(connection)
            results.append((moment, time.monotonic() - start - moment, status))

    async with asyncio.TaskGroup() as group:
        for i, moment in enumerate(planned):
            await asyncio.sleep(max(0.0, start + moment - time.monotonic()))
            group.create_task(one(moment, requests[i % len(requests)]))
    for _, writer in idle:
        await _close(writer)
    return results


async def capacity(port, requests, num_connections, seconds):
    """Answers per second in a closed loop, after a second to warm up."""
    start = time.monotonic() + 1.0
    counts = await asyncio.gather(*(_loop(port, requests, k, start, seconds) for k in range(num_connections)))
    return sum(counts) / seconds


async def _loop(port, requests, k, start, seconds):
    connection, count = await asyncio.open_connection("127.0.0.1", port), 0
    while (now := time.monotonic()) < start + seconds:
        await _exchange(*connection, requests[k % len(requests)])
        count += now >= start
        k += 1
    await _close(connection[1])
    return count


async def _close(writer):
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _exchange(reader, writer, request):
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
    )
    await reader.readexactly(length)
    return status
