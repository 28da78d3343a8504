"""`GET /v2/models[/{model}[/versions/{version}]]/stats`: Triton's statistics extension. Counts nothing itself.

Figures are those of all workers of the model's group, dead ones included (gateway/ledger.py). Live ones are asked to
tell theirs anew first, so that whoever has an answer finds it counted.

Source: Triton, docs/protocol/extension_statistics.md; durations of requests and of executions: workers/counters.py.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from contract.errors import HeadraceError
from contract.model_config import ModelStats
from gateway.core import Target
from gateway.http.front import Front
from gateway.http.routing import RawRoute

PAUSE_S: Final = 0.1
"""Between two questions to the workers: anybody may ask here, as often as they like."""


def statistics_routes(front: Front) -> list[BaseRoute]:
    """Of all models, of one, of one version. They come before `/v2/models/{model}`: no model is called `stats`."""
    routes = StatisticsRoutes(front)
    base = "/v2/models/{model}"
    return [
        RawRoute("/v2/models/stats", routes.all_models),
        RawRoute(f"{base}/stats", routes.model),
        RawRoute(f"{base}/versions/{{version}}/stats", routes.model),
    ]


class StatisticsRoutes:
    """The endpoints."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def model(self, request: Request) -> Response:
        """A model's ready versions, or the one that the path names; unknown is 404, unready 503."""
        target = self._front.resolve(request)
        await self._front.doorway.core.refresh(PAUSE_S)
        return self._front.json(request, {"model_stats": self._of(target)})

    async def all_models(self, request: Request) -> Response:
        """Every model that its caller may ask, by name."""
        principal, service = self._front.principal(request), self._front.service(request)
        core = self._front.doorway.core
        if service:
            core.models(service)  # an unknown one is told, not taken for one without models
        await core.refresh(PAUSE_S)
        found: list[dict[str, Any]] = []
        for name in sorted({card.config.name for _, card in core.models(service)}):
            try:
                found += self._of(core.resolve(principal, service, name, ""))
            except HeadraceError:  # not ready, or not for this caller
                continue
        return self._front.json(request, {"model_stats": found})

    def _of(self, target: Target) -> list[dict[str, Any]]:
        core, name = self._front.doorway.core, target.card.config.name
        versions = [target.version] if target.version else reversed(target.card.ready_versions)
        return [model_stats(core.statistics(target.group, name, version)) for version in versions]


def model_stats(stats: ModelStats) -> dict[str, Any]:
    """Triton's `$model_stat`.

    There is no response cache and no model that answers more than once per request, and memory is not known by model:
    those fields are there for the clients that read them, empty.
    """
    num = stats.num_success
    success_us = stats.queue_us + stats.compute_input_us + stats.compute_infer_us + stats.compute_output_us
    return {
        "name": stats.model,
        "version": stats.version,
        "last_inference": stats.last_inference_unix_ms,
        "inference_count": stats.num_inferences,
        "execution_count": stats.num_executions,
        "inference_stats": {
            "success": _duration(num, success_us),
            "fail": _duration(stats.num_failed, stats.failed_us),
            "queue": _duration(num, stats.queue_us),
            "compute_input": _duration(num, stats.compute_input_us),
            "compute_infer": _duration(num, stats.compute_infer_us),
            "compute_output": _duration(num, stats.compute_output_us),
            "cache_hit": _duration(0, 0),
            "cache_miss": _duration(0, 0),
        },
        "response_stats": {},
        "batch_stats": [
            _batch(rows, num_executions, stats.batch_us.get(rows, (0, 0, 0)))
            for rows, num_executions in sorted(stats.rows_per_execution.items())
        ],
        "memory_usage": [],
    }


def _batch(rows: int, num: int, times_us: tuple[int, int, int]) -> dict[str, Any]:
    names = ("compute_input", "compute_infer", "compute_output")
    return {"batch_size": rows, **{name: _duration(num, us) for name, us in zip(names, times_us, strict=True)}}


def _duration(count: int, us: int) -> dict[str, int]:
    return {"count": count, "ns": us * 1000}
