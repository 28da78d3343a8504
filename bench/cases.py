"""The cases of `make bench`: which stacks, which load, which keys come of it."""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import bodies
import measure
import open_loop
import server_cases
import stacks

ROOT = Path(__file__).parent.parent
ADD_SUB = ROOT / "tests" / "models" / "add_sub"
PACE = ROOT / "bench" / "models" / "pace"
MINILM = ROOT / "model_repository" / "minilm"
INFER = "/v2/models/{}/infer"


def tiny(rounds, seconds):
    """Two adds over 16 floats: what everything around the model costs."""
    rows = bodies.add_sub_rows()
    ours = [bodies.oip_json(INFER.format("add_sub"), r, "FP32") for r in rows]
    theirs = {
        "mosec": (lambda: stacks.mosec("add_sub"), [bodies.plain("/inference", r) for r in rows]),
        "fastapi2": (lambda: stacks.fastapi("add_sub"), [bodies.plain("/predict", r) for r in rows]),
        "fastapi1": (lambda: stacks.fastapi("add_sub", workers=1), [bodies.plain("/predict", r) for r in rows]),
    }
    field = {"headrace": (lambda: stacks.headrace([ADD_SUB]), ours), **theirs}
    cells = _compare("tiny", field, (1, 8, 32, 128), range(rounds), seconds)
    keys = {
        "online.tiny_c128_vs_mosec": _ratio(cells, 128, "headrace", "mosec"),
        "online.tiny_c32_vs_mosec": _ratio(cells, 32, "headrace", "mosec"),
        "online.tiny_c8_vs_fastapi2": _ratio(cells, 8, "headrace", "fastapi2"),
        "online.tiny_p50_ms_c1": _three(_median(c.percentile_ms(50) for c in _of(cells, "headrace", 1))),
    }
    return keys, [asdict(c) for c in cells], _table(cells)


def minilm(rounds, seconds):
    """32 tokens, binary tensors, 32 in flight, against a bare session loop."""
    rows = bodies.minilm_rows([32] * bodies.NUM_ROWS)
    ours = [bodies.oip_binary(INFER.format("minilm"), r, "<i8", "INT64") for r in rows]
    cells, loops, quiet = [], [], []
    for n in range(rounds):
        cells += _compare("minilm", {"headrace": (lambda: stacks.headrace([MINILM]), ours)}, (32,), [n], seconds * 2)
        answer_bytes = 1536 + 200  # the embedding and its head, as our answer has them
        with stacks.noop(32 / cells[-1].rate, answer_bytes) as target, tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "requests"
            bodies.write(file, ours)
            load = subprocess.Popen(
                measure.wrk_command(target.port, file, 32, seconds * 6 + 8),
                stdout=subprocess.DEVNULL,
            )
            try:
                loops.append(_raw_loop(seconds))
            finally:
                load.terminate()
                load.wait()
        quiet.append(_raw_loop(seconds))
    best = [max(r.values()) for r in loops]
    ratio = _median(c.rate / b for c, b in zip(cells, best, strict=True))
    table = (
        _table(cells)
        + "\n"
        + "\n".join(
            f"bare loop {label}: "
            + ", ".join(f"batch {b}: {_median(r[b] for r in found):.1f} rows/s" for b in found[0])
            for label, found in (("beside the load generator", loops), ("undisturbed", quiet))
        )
    )
    samples = {"cells": [asdict(c) for c in cells], "loop_beside_load": loops, "loop_undisturbed": quiet}
    return {"online.minilm_vs_raw": _three(ratio)}, samples, table


def mixed(rounds, seconds):
    """Lengths 8 to 256, log-uniform: padding is what a row-count batcher pays for."""
    cells = _compare("mixed", _minilm_field(8, 256), (32, 128), range(rounds), seconds * 3)
    unbatched = [min(_best_ratio(cells, c, ("mosec_mb1", "fastapi2")) for c in (32, 128))]
    keys = {
        "online.mixed_c32_vs_padding": _ratio(cells, 32, "headrace", "mosec_mb32"),
        "online.mixed_c128_vs_padding": _ratio(cells, 128, "headrace", "mosec_mb32"),
        "online.mixed_vs_unbatched": _three(unbatched[0]),
    }
    return keys, [asdict(c) for c in cells], _table(cells)


def short(rounds, seconds):
    """Lengths 4 to 32, log-uniform: short texts gain from batching."""
    cells = _compare("short", _minilm_field(4, 32), (32, 128), range(rounds), seconds * 2)
    peers = ("mosec_mb1", "mosec_mb32", "fastapi2")
    keys = {f"online.short_c{c}_vs_best": _three(_best_ratio(cells, c, peers)) for c in (32, 128)}
    return keys, [asdict(c) for c in cells], _table(cells)


def slow_worker(rounds, seconds):
    """Two workers, 5 and 50 ms per micro-batch, 900 rows a second in an open loop."""
    row = {"INPUT0": [0.0] * 16}
    request = bodies.oip_json(INFER.format("pace"), row, "FP32")
    samples = []
    for n in range(rounds):
        with stacks.headrace([PACE], "--workers", "2", is_paced=True) as running:
            asyncio.run(open_loop.run(running.port, [request], 200, 1.0))
            samples.append(asyncio.run(open_loop.run(running.port, [request], 900, seconds * 2, seed=n)))
    lost = sum(1 for s in samples for _, latency, status in s if latency is None or status != 200)
    worst = _median(statistics.quantiles([s[1] for s in found if s[1]], n=100)[98] * 1000 for found in samples)
    keys = {"online.slow_worker_lost": lost, "online.slow_worker_p99_ms": _three(worst)}
    return keys, samples, f"{sum(map(len, samples))} requests in {rounds} rounds"


CASES = {
    "tiny": tiny,
    "minilm": minilm,
    "mixed": mixed,
    "short": short,
    "slow_worker": slow_worker,
    "moderation": server_cases.moderation,
    "reload": server_cases.reload,
    "forty": server_cases.forty,
}


def _minilm_field(low, high):
    rows = bodies.minilm_rows(bodies.lengths(low, high))
    inference = [bodies.plain("/inference", r) for r in rows]
    return {
        "headrace": (
            lambda: stacks.headrace([MINILM]),
            [bodies.oip_json(INFER.format("minilm"), r, "INT64") for r in rows],
        ),
        "mosec_mb32": (lambda: stacks.mosec("minilm", workers=2), inference),
        "mosec_mb1": (lambda: stacks.mosec("minilm", workers=2, max_batch=1), inference),
        "fastapi2": (lambda: stacks.fastapi("minilm"), [bodies.plain("/predict", r) for r in rows]),
    }


def _compare(case, field, concurrencies, rounds, seconds):
    """Every stack once in each of the numbered rounds, in turn; a stack is started anew each time."""
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        for n in rounds:
            for name, (start, requests) in field.items():
                file = Path(folder) / name
                bodies.write(file, requests)
                with start() as running:
                    status, body = stacks.call(running.port, requests[0])
                    if status != 200:
                        raise RuntimeError(f"{name} answered {status}: {body[:300]!r}")
                    for c in concurrencies:
                        cell = measure.wrk(measure.Load(name, case, c, n), running, file, seconds)
                        cells.append(cell)
                        print(cell.line(), flush=True)
    return cells


def _raw_loop(seconds):
    command = [sys.executable, str(Path(__file__).parent / "raw_loop.py")]
    command += [str(stacks.ONNX["minilm"]), "32", str(seconds * 2)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    return {int(k): v for k, v in json.loads(done.stdout).items()}


def _of(cells, stack, concurrency):
    return [c for c in cells if c.stack == stack and c.concurrency == concurrency]


def _ratio(cells, concurrency, ours, theirs):
    """Median over rounds of ours / theirs, each pair out of one round; None if a peer answered nothing in a cell."""
    pairs = list(zip(_of(cells, ours, concurrency), _of(cells, theirs, concurrency), strict=True))
    if not all(b.requests for _, b in pairs):
        return None
    return _three(_median(a.rate / b.rate for a, b in pairs))


def _best_ratio(cells, concurrency, peers):
    """Ours against the peer that is best by its median."""
    found = (_ratio(cells, concurrency, "headrace", p) for p in peers)
    return min(r for r in found if r is not None)


def _median(values):
    return statistics.median(values)


def _three(value):
    return float(f"{value:.3g}")


def _table(cells):
    lines = ["stack          c    req/s   p50 ms   p99 ms  errors  (medians)"]
    for stack, c in dict.fromkeys((x.stack, x.concurrency) for x in cells):
        found = _of(cells, stack, c)
        rate, p50, p99 = (
            _median(values)
            for values in zip(*((x.rate, x.percentile_ms(50), x.percentile_ms(99)) for x in found), strict=True)
        )
        errors = sum(x.http_errors + x.socket_errors for x in found)
        lines.append(f"{stack:12} {c:4} {rate:8.1f} {p50:8.2f} {p99:8.2f} {errors:7}")
    return "\n".join(lines)
