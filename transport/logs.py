"""Structured logs, the same for every process on the broker: JSON lines on stderr, readable lines on a terminal.

Payloads and keys are never logged: fields are chosen one by one, tracebacks leave out the values of variables.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)  # locals hold payloads and keys
)


def configure_logs(level: str, **fields: Any) -> None:
    """Set the process up; every event carries `fields`. Libraries' own warnings take the same way out."""
    is_terminal = sys.stderr.isatty()
    renderers: list[Any] = (
        [structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if is_terminal
        else [_TRACEBACKS, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**fields)
    logging.basicConfig(level=logging.WARNING, handlers=[_Forward()], force=True)


class _Forward(logging.Handler):
    """Standard-library records as events."""

    def emit(self, record: logging.LogRecord) -> None:
        """One record, one event."""
        structlog.get_logger().log(record.levelno, "library-log", logger=record.name, text=record.getMessage())
