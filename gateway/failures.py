"""The one log line of a request that ended in an error, the same for every door. Answers nothing, counts nothing.

Payloads, keys and error messages, which may quote a payload, stay out of it; the ids join it with the worker's lines.
"""

from __future__ import annotations

import logging
from typing import Final

import structlog

from contract.errors import HeadraceError
from gateway.limits.refusal import DEGRADED, LimitRefused

log = structlog.get_logger("gateway.failures")

_CALLER_GONE: Final = 499


def log_failure(
    error: HeadraceError,
    *,
    door: str,
    request_id: str,
    caller_id: str,
    traceparent: str,
    tenant: str,
    service: str,
    model: str,
    status: int,
    seconds: float,
) -> None:
    """Log `request-failed`; ids the caller did not send are left out."""
    fields = {"caller_id": caller_id, "traceparent": traceparent, "tenant": tenant, "service": service, "model": model}
    if isinstance(error, LimitRefused):
        _log_refusal(error, door=door, request_id=request_id, **{k: v for k, v in fields.items() if v})
        return
    log.log(
        level_of(status),
        "request-failed",
        door=door,
        request_id=request_id,
        code=error.code,
        status=status,
        seconds=round(seconds, 6),
        **{name: value for name, value in fields.items() if value},
    )


def _log_refusal(error: LimitRefused, **fields: str) -> None:
    """What happened, who did it, what followed, and where to change it, in one line."""
    refused = error.refused
    log.info(
        "request-degraded",
        strategy=refused.limit.strategy,
        code=error.http_status,
        msg=DEGRADED,
        scope=refused.limit.scope,
        limit=refused.limit.shown,
        current=round(refused.current, 6),
        retry_after_s=refused.retry_after_s,
        configured_at=refused.limit.configured_at,
        **fields,
    )


def level_of(status: int) -> int:
    """Who reads about it: faults of ours or the model's warn, our state and lost callers inform, the rest is theirs."""
    if status == HeadraceError.http_status:
        return logging.WARNING
    return logging.INFO if status >= _CALLER_GONE else logging.DEBUG
