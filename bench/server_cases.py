"""Cases about a model server's day: a burst, versions that come and go under load, many models in one service."""

import asyncio
import contextlib
import shutil
import statistics
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import bodies
import measure
import open_loop
import stacks
import uvloop

ROOT = Path(__file__).parent.parent
ADD_SUB = ROOT / "tests" / "models" / "add_sub"
TOXICITY = ROOT / "model_repository" / "toxicity"
SHARE = 0.7  # of capacity
BURST_AFTER_S = 8.0
BURST_S = 2.0
BURST_FACTOR = 10
CALM_S = 8.0
TIMEOUT_S = 60.0
NUM_CLOSED = 64
RELOAD_RATE = 200
RELOAD_S = 60.0
NUM_MODELS = 40
TEXTS = [f"message {i}: have you seen what they wrote about the match last night?" for i in range(64)]


def moderation(rounds, seconds):
    """`toxicity` in an open loop at 70 % of capacity, with two seconds of ten times that in between.

    Capacity is what the same client gets in a closed loop of 64, as it takes its share of the machine too. *Outside*
    the burst is what was planned before it, or after its backlog was worked off: no more open than that loop has.
    """
    requests = [bodies.oip_text("/v2/models/toxicity/infer", text) for text in TEXTS]
    samples = []
    for n in range(rounds):
        with stacks.headrace([TOXICITY]) as running:
            capacity = uvloop.run(open_loop.capacity(running.port, requests, NUM_CLOSED, max(3.0, seconds)))
            samples.append({"capacity": capacity, **uvloop.run(_with_burst(running.port, requests, capacity, n))})
            print(_burst_line(samples[-1]), flush=True)
    keys = {
        "server.moderation_p99_ms": _three(statistics.median(_p99_ms(outside(s)) for s in samples)),
        "server.burst_lost": sum(len(lost(s)) for s in samples),
    }
    return keys, samples, "\n".join(_burst_line(s) for s in samples)


async def _with_burst(port, requests, capacity, seed):
    rate = SHARE * capacity
    calm_s = BURST_AFTER_S + BURST_S + CALM_S + BURST_FACTOR * BURST_S / (1 - SHARE) * SHARE
    base = asyncio.create_task(open_loop.run(port, requests, rate, calm_s, timeout_s=TIMEOUT_S, seed=seed))
    await asyncio.sleep(BURST_AFTER_S)
    more = rate * (BURST_FACTOR - 1)
    burst = await open_loop.run(port, requests, more, BURST_S, timeout_s=TIMEOUT_S, seed=seed + 100)
    return {"base": _kept(await base), "burst": _kept(burst, BURST_AFTER_S)}


def _kept(samples, later_s=0.0):
    """To a tenth of a millisecond: a hundred thousand samples are kept."""
    return [(round(at + later_s, 4), latency and round(latency, 4), status) for at, latency, status in samples]


def outside(sample):
    """Samples of the base load that the burst did not meet: planned before it, or after its backlog was worked off."""
    moves = [(at, 1) for at, _, _ in (*sample["base"], *sample["burst"])]
    moves += [(at + (TIMEOUT_S if s is None else s), -1) for at, s, _ in (*sample["base"], *sample["burst"])]
    num_open, over_s = 0, None
    for at, step in sorted(moves):
        num_open += step
        if at > BURST_AFTER_S + BURST_S and num_open <= NUM_CLOSED:
            over_s = at
            break
    before = [s for s in sample["base"] if s[0] < BURST_AFTER_S - 0.5]
    return before + [s for s in sample["base"] if over_s is not None and s[0] > over_s]


def lost(sample):
    """Requests of the whole run, burst and base, that got neither their answer nor a refusal (429 or 503)."""
    return [s for s in (*sample["burst"], *sample["base"]) if s[2] not in {200, 429, 503}]


def _p99_ms(samples):
    """A request without an answer counts as one that took for ever."""
    latencies = sorted(TIMEOUT_S if latency is None else latency for _, latency, _ in samples)
    return latencies[int(0.99 * len(latencies))] * 1000


def _burst_line(sample):
    refused = sum(status in {429, 503} for _, _, status in sample["burst"])
    calm = outside(sample)
    return (
        f"capacity {sample['capacity']:.0f}/s, burst of {len(sample['burst'])}: {refused} refused; "
        f"outside it {len(calm)} requests, p99 {_p99_ms(calm):.1f} ms; lost in all {len(lost(sample))}"
    )


def reload(rounds, seconds):
    """200 requests a second for a minute, while a version is added, replaced, broken, repaired and deleted in turn."""
    del rounds, seconds  # this case is about its length
    row = {name: [1.0] * 16 for name in ("INPUT0", "INPUT1")}
    request = bodies.oip_json("/v2/models/changing/infer", row, "FP32")
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "changing"
        shutil.copytree(ADD_SUB, model)
        (model / "config.pbtxt").write_text(
            (ADD_SUB / "config.pbtxt").read_text() + "version_policy { latest { num_versions: 1 } }\n"
        )
        polling = {"HEADRACE_WORKER__MODEL_CONTROL_MODE": "poll", "HEADRACE_WORKER__REPOSITORY_POLL_S": "0.5"}
        with stacks.headrace([model], env=polling) as running:
            samples, num_changes = asyncio.run(_reloading(running.port, request, model))
    failed = [s for s in samples if s[2] != 200]
    table = f"{len(samples)} requests over {num_changes} changes of the repository, {len(failed)} failed"
    return {"server.reload_failed": len(failed)}, samples, table


async def _reloading(port, request, model):
    load = asyncio.create_task(open_loop.run(port, [request], RELOAD_RATE, RELOAD_S))
    num_changes = 0
    with contextlib.suppress(asyncio.CancelledError):
        while not load.done():
            for change in (_add, _edit, _break, _repair, _delete):
                await asyncio.wait({load}, timeout=2.0)
                if load.done():
                    break
                await asyncio.to_thread(change, model)
                num_changes += 1
    return await load, num_changes


def _add(model):
    shutil.copytree(ADD_SUB / "1", model / ".2")
    (model / ".2").rename(model / "2")


def _edit(model):
    config = model / "config.pbtxt"
    config.write_text(
        config.read_text() + f"parameters {{ key: 'edit_{time.time_ns()}' value {{ string_value: '1' }} }}\n"
    )


def _break(model):
    (model / "2" / "model.onnx").write_bytes(b"no model")


def _repair(model):
    shutil.copy(ADD_SUB / "1" / "model.onnx", model / "2" / "model.onnx")


def _delete(model):
    shutil.rmtree(model / "2")


def forty(rounds, seconds):
    """One model among forty in one service with two workers, against the same model alone."""
    row = bodies.add_sub_rows()
    requests = [bodies.oip_json("/v2/models/m00/infer", r, "FP32") for r in row]
    cells, ready_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        models = [Path(folder) / f"m{i:02}" for i in range(NUM_MODELS)]
        for model in models:
            shutil.copytree(ADD_SUB, model)
        file = Path(folder) / "requests"
        bodies.write(file, requests)
        for n in range(rounds):
            for stack, served in (("forty", models), ("one", models[:1])):
                started_s = time.monotonic()
                with stacks.headrace(served, "--workers", "2") as running:
                    if stack == "forty":
                        ready_s.append(time.monotonic() - started_s)
                    cells.append(measure.wrk(measure.Load(stack, "forty", 32, n), running, file, seconds))
                    print(cells[-1].line(), flush=True)
    pairs = zip(cells[::2], cells[1::2], strict=True)
    keys = {
        "server.rps_40_models_ratio": _three(statistics.median(a.rate / b.rate for a, b in pairs)),
        "server.ready_40_models_s": _three(statistics.median(ready_s)),
    }
    table = "\n".join(cell.line() for cell in cells)
    return keys, {"cells": [asdict(c) for c in cells], "ready_s": ready_s}, table


def _three(value):
    return float(f"{value:.3g}")
