"""A broker, gateways and worker pools for one test: started apart, found by pid, all gone afterwards.

A test that ends well has every part it did not end itself still running and no traceback in any log.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gateway.settings import GatewaySettings
from tests.support.broker import Broker, free_port
from tests.support.cluster_http import HOST, Answered, infer, json_request
from tests.support.cluster_parts import Part, wait_until
from transport.settings import BrokerSettings
from workers.settings import WorkerSettings

FIXTURES = Path(__file__).parents[1] / "models"
READY_WITHIN_S = 60.0


class Gateway(Part):
    """One gateway."""

    http_port: int
    metrics_port: int

    def get(self, path: str) -> int:
        """Status of a GET; 0 where nobody listens."""
        return get(self.http_port, path)[0]

    def is_ready(self, model: str = "") -> bool:
        return self.get(f"/v2/models/{model}/ready" if model else "/v2/health/ready") == 200

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples that carry these labels."""
        text = get(self.metrics_port, "/metrics")[1]
        total = 0.0
        for found, its_labels, value in re.findall(r"^(\w+)(\{.*\})? (\S+)$", text, re.MULTILINE):
            if found == name and all(f'{k}="{v}"' in its_labels for k, v in labels.items()):
                total += float(value)
        return total

    async def wait_metric(self, name: str, wanted: float, within_s: float = 15.0, **labels: str) -> None:
        """Poll until the metric has this value."""
        end_s = time.monotonic() + within_s
        while (seen := await asyncio.to_thread(self.metric, name, **labels)) != wanted:
            assert time.monotonic() < end_s, f"{name} is {seen:g}, not {wanted:g} after {within_s:g} s"
            await asyncio.sleep(0.05)


class Cluster:
    """What a test starts."""

    def __init__(self, folder: Path, broker: Broker) -> None:
        self.folder = folder
        self.broker = broker
        self.parts: list[Part] = []
        self.counters = folder / "counters"
        self.counters.mkdir()
        self.broker_settings: dict[str, Any] = {}
        """For every part started from now on."""

    def serve(self, *models: str, num_workers: int = 1, **worker: Any) -> tuple[Gateway, list[Part]]:
        """One gateway and so many pools of one worker each, started together; returns once all serve."""
        gateway = self.start_gateway(wait=False)
        pools = [self.start_pool(models, f"pool-{n}", **worker) for n in range(num_workers)]
        self.wait_gateway(gateway)
        self.wait_ready(gateway, *models, num_workers=num_workers)
        return gateway, pools

    def start_gateway(
        self,
        name: str = "gateway",
        *,
        ports: tuple[int, int] | None = None,
        broker_url: str = "",
        command: Sequence[str] = ("-m", "gateway.app"),
        wait: bool = True,
        **settings: Any,
    ) -> Gateway:
        """Start one, by default until it is ready."""
        http_port, metrics_port = ports or (free_port(), free_port())
        found = GatewaySettings(
            http_port=http_port, metrics_port=metrics_port, broker=self._broker(broker_url), **settings
        )
        gateway = Gateway(name, command, found.model_dump_json(), self.folder)
        gateway.http_port, gateway.metrics_port = http_port, metrics_port
        self.parts.append(gateway)
        if wait:
            self.wait_gateway(gateway)
        return gateway

    def start_pool(
        self,
        models: Sequence[str],
        name: str = "pool",
        *,
        broker_url: str = "",
        repository: Path = FIXTURES,
        command: Sequence[str] = ("-m", "workers.pool"),
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Part:
        """Start one; `wait_ready` says when its models can be asked."""
        settings.setdefault("restart_backoff_s", 0.2)
        found = WorkerSettings(
            model_repository=repository, models=list(models), broker=self._broker(broker_url), **settings
        )
        shared = {"HEADRACE_COUNTER_DIR": str(self.counters), **(environment or {})}
        pool = Part(name, command, found.model_dump_json(), self.folder, shared)
        self.parts.append(pool)
        return pool

    def wait_gateway(self, gateway: Gateway) -> None:
        self._wait(gateway.is_ready, f"{gateway.name} is ready")

    def wait_ready(self, gateway: Gateway, *models: str, num_workers: int = 1) -> None:
        """The gateway knows `num_workers` workers that serve every one of `models`."""

        def serves() -> bool:
            counts = (gateway.metric("headrace_worker_instances", model=model) for model in models)
            return all(gateway.is_ready(m) for m in models) and all(n >= num_workers for n in counts)

        self._wait(serves, f"{num_workers} workers serve {models}")

    def wait_pool(self, gateway: Gateway, pool: Part, *models: str) -> None:
        """The gateway knows that this very pool's worker serves `models`, whoever else does."""

        def serves() -> bool:
            names = [e["worker"] for e in pool.events() if e.get("process") == "worker"]
            metric = "headrace_worker_instances"
            return bool(names) and all(gateway.metric(metric, model=m, worker=names[-1]) >= 1 for m in models)

        self._wait(serves, f"{pool.name} serves {models}")

    def executions(self, model: str) -> list[dict[str, Any]]:
        """Every execution of a fixture so far, over all workers."""
        file = self.counters / f"{model}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def num_executed(self, model: str) -> dict[str, int]:
        """How often each request was executed, by its id."""
        counts: dict[str, int] = {}
        for execution in self.executions(model):
            for request in execution["ids"]:
                counts[request] = counts.get(request, 0) + 1
        return counts

    def wait_executed(self, model: str, num: int) -> None:
        """So many requests of a fixture have been started."""
        self._wait(lambda: sum(self.num_executed(model).values()) >= num, f"{num} requests of {model} were started")

    def check(self) -> None:
        """Nothing died that the test did not end, and nothing raised."""
        for part in self.parts:
            assert part.was_ended or part.is_running, f"{part.name} ended by itself\n{part.last_words()}"
            faults = part.faults()
            assert not faults, f"{part.name} has raised: {faults[:3]}"

    def last_words(self) -> str:
        return "\n".join(part.last_words() for part in self.parts)

    def end(self) -> None:
        for part in self.parts:
            part.end()
        self.broker.kill()

    def _broker(self, url: str) -> BrokerSettings:
        return BrokerSettings(servers=[url or self.broker.url], **self.broker_settings)

    def _wait(self, holds: Any, what: str) -> None:
        try:
            wait_until(holds, what, READY_WITHIN_S)
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.last_words()}") from None


@contextlib.contextmanager
def cluster(folder: Path, *, broker: Broker | None = None, starts_broker: bool = True) -> Iterator[Cluster]:
    """A broker, and whatever the block starts. Use outside a running event loop: as a fixture, not in a test."""
    broker = broker or Broker(folder)
    if starts_broker:
        asyncio.run(broker.start())
    found = Cluster(folder, broker)
    try:
        yield found
        found.check()
    except BaseException as e:
        e.add_note(found.last_words())
        raise
    finally:
        found.end()


def get(port: int, path: str) -> tuple[int, str]:
    """Status and body of a GET; 0 where nobody listens."""
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}{path}", timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()
    except OSError:
        return 0, ""


async def known_good(gateway: Gateway, model: str = "ident_f32", within_s: float = 5.0) -> Answered:
    """A request that works whenever the server does."""
    answer = await infer(gateway.http_port, model, json_request([1.0, 2.0]), within_s=within_s)
    assert answer.status == 200, (answer.status, answer.body[:500])
    assert answer.data == [1.0, 2.0]
    return answer
