"""One measurement: wrk against a running stack, with the CPU that strangers took meanwhile. Judges nothing."""

import json
import os
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

LUA = Path(__file__).parent / "load" / "rotate.lua"


@dataclass(frozen=True)
class Load:
    """What is measured: a stack, in a case, at a concurrency, in a round."""

    stack: str
    case: str
    concurrency: int
    round: int


@dataclass(frozen=True)
class Cell(Load):
    """What came of it. Latencies are a histogram: [[microseconds, count], ...]."""

    requests: int
    seconds: float
    http_errors: int
    socket_errors: int
    latency_us: list
    foreign_cores: float
    stack_cores: float

    @property
    def rate(self):
        return self.requests / self.seconds

    def percentile_ms(self, p):
        return percentile_ms(self.latency_us, p)

    def line(self):
        """One line for whoever watches."""
        return (
            f"{self.case:8} round {self.round} {self.stack:12} c={self.concurrency:<4} {self.rate:9.1f}/s"
            f"  p50 {self.percentile_ms(50):8.2f} ms  p99 {self.percentile_ms(99):8.2f} ms"
            f"  errors {self.http_errors + self.socket_errors}"
            f"  stack {self.stack_cores:.2f} cores, strangers {self.foreign_cores:.2f}"
        )


def percentile_ms(histogram, p):
    """Smallest latency that p percent of the answers do not exceed, milliseconds."""
    total = sum(n for _, n in histogram)
    seen = 0
    for us, n in sorted(histogram):
        seen += n
        if seen >= total * p / 100:
            return us / 1000
    return 0.0


def wrk_command(port, requests_file, concurrency, seconds):
    """The load generator: one thread, closed loop, `concurrency` keep-alive connections."""
    command = ["wrk", "-t1", f"-c{concurrency}", f"-d{seconds}s", "--timeout", "30s", "-s", str(LUA)]
    return [*command, f"http://127.0.0.1:{port}/", "--", str(requests_file)]


def wrk(load, running, requests_file, seconds):
    """Load for `seconds` after a warm-up of a quarter of it (at least one second)."""
    warm = max(1, round(seconds / 4))
    command = wrk_command(running.port, requests_file, load.concurrency, warm)
    subprocess.run(command, check=True, capture_output=True, timeout=warm + 60)
    before = _busy(running.pids)
    started, generator = time.monotonic(), _children_cpu()
    command = wrk_command(running.port, requests_file, load.concurrency, seconds)
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 60)
    wall, generator = time.monotonic() - started, _children_cpu() - generator
    after = _busy(running.pids)
    own = after[1] - before[1]
    raw = json.loads(next(line[4:] for line in done.stdout.splitlines() if line.startswith("RAW ")))
    foreign = max(0.0, after[0] - before[0] - own - generator) / wall
    return Cell(**asdict(load), **raw, foreign_cores=round(foreign, 3), stack_cores=round(own / wall, 3))


def tree(pid):
    """The process and everything below it."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _busy(pids):
    """(busy CPU seconds of the machine, of the stack) since boot."""
    t = psutil.cpu_times()
    machine = t.user + t.system + t.nice + t.irq + t.softirq
    own = 0.0
    for pid in pids:
        for process in tree(pid):
            try:
                c = process.cpu_times()
                own += c.user + c.system
            except psutil.NoSuchProcess:
                continue
    return machine, own


def _children_cpu():
    t = os.times()
    return t.children_user + t.children_system
