"""What a worker's log says of a request that went wrong: ids, model and code. Settles nothing.

Payloads and error messages, which may quote one, stay out; the ids join the line with the gateway's.
"""

from __future__ import annotations

import structlog

from contract.errors import HeadraceError, InternalError, ModelFailed
from workers.items import WorkItem

log = structlog.get_logger()


def ids_of(item: WorkItem) -> dict[str, str]:
    """The ids to log of a request; those its caller did not send are left out."""
    ids = {"caller_id": item.caller_id, "traceparent": item.traceparent}
    return {"request_id": item.request_id, **{name: value for name, value in ids.items() if value}}


def log_failure(item: WorkItem, error: HeadraceError) -> None:
    """Log `execution-failed` if the fault was the model's or ours, not a full queue or a deadline."""
    if isinstance(error, ModelFailed | InternalError):
        log.warning("execution-failed", model=item.model, version=item.version, code=error.code, **ids_of(item))
