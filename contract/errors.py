"""Every way a request can end badly, as one tree. Says what each means on each door; raises or logs nothing itself.

    HeadraceError
    ├── InvalidInput      400  malformed or impossible input
    │   └── TextTooLong        a text has more tokens than the model reads, and is not to be cut
    ├── Unauthenticated   401  no key, or a key nobody knows
    ├── Forbidden         403  the key lacks the role or the model
    ├── NotFound          404  unknown model, version or id; also a foreign id
    ├── TooLarge          413  a payload over a limit that no retry can change
    ├── LimitReached      429  a configured limit of the caller's
    ├── Unavailable       503  our state, not the caller's fault
    │   ├── QueueFull          the model's or the group's queue is full
    │   ├── QueueTimeout       the queue policy's time-out rejected it
    │   ├── NoWorker           nobody serves this model now
    │   ├── ModelNotReady      the model is known but still loading, or failed to load
    │   ├── BrokerAway         the message broker can't be reached
    │   └── Draining           this process is shutting down
    ├── DeadlineExceeded  504  the caller's deadline passed
    ├── ModelFailed       500  the model raised, or returned something impossible
    │   ├── InstanceDied       the process that ran the request died under it
    │   ├── PoisonRequest      the request killed its worker more than once
    │   └── ExecutionTimeout   the model did not return within max_execution_s
    ├── Cancelled         499  the caller left or asked to stop
    ├── NotSupported      501  a part of a protocol that is not here
    └── InternalError     500  a fault of ours

Invariants: every concrete class has a distinct `code`; `from_wire` gives back the class it was made from
(tests/unit/test_errors.py).
"""

from __future__ import annotations

from enum import Enum
from typing import ClassVar

RETRY_AFTER_S = 1
"""Seconds a caller is told to wait when our state, not a counted limit, was the reason."""


class OnDelivery(Enum):
    """What a worker does with the broker's message once the request ended in this error."""

    ACK = "ack"
    NAK = "nak"
    TERM = "term"


class HeadraceError(Exception):
    """A request's bad end: a code, what it means on each door, and a message that names the offending values."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    grpc_status: ClassVar[str] = "INTERNAL"
    is_retryable: ClassVar[bool] = False
    on_delivery: ClassVar[OnDelivery] = OnDelivery.ACK

    def __init__(self, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s


class InvalidInput(HeadraceError):
    """The request can never work as it is; the message names the input, the field and both values."""

    code = "invalid-input"
    http_status = 400
    grpc_status = "INVALID_ARGUMENT"


class TextTooLong(InvalidInput):
    """A text has more tokens than the model reads and its model cuts none; the message names both numbers."""

    code = "text-too-long"


class Unauthenticated(HeadraceError):
    """No key was sent where one is needed, or nobody knows the key."""

    code = "unauthenticated"
    http_status = 401
    grpc_status = "UNAUTHENTICATED"


class Forbidden(HeadraceError):
    """The key is known but lacks the role or the model."""

    code = "forbidden"
    http_status = 403
    grpc_status = "PERMISSION_DENIED"


class NotFound(HeadraceError):
    """Nothing by that name, or it is another tenant's, which reads the same."""

    code = "not-found"
    http_status = 404
    grpc_status = "NOT_FOUND"


class TooLarge(HeadraceError):
    """A payload over a limit; the message names both sizes in bytes."""

    code = "too-large"
    http_status = 413
    grpc_status = "RESOURCE_EXHAUSTED"


class IdempotencyMismatch(HeadraceError):
    """The idempotency key was used for a request with another route or body."""

    code = "idempotency-mismatch"
    http_status = 422
    grpc_status = "INVALID_ARGUMENT"


class LimitReached(HeadraceError):
    """A configured limit of the caller's; `retry_after_s` says when it would fit."""

    code = "limit-reached"
    http_status = 429
    grpc_status = "RESOURCE_EXHAUSTED"
    is_retryable = True


class Unavailable(HeadraceError):
    """Our state is the reason; the same request may succeed later."""

    code = "unavailable"
    http_status = 503
    grpc_status = "UNAVAILABLE"
    is_retryable = True

    def __init__(self, message: str, *, retry_after_s: int | None = RETRY_AFTER_S) -> None:
        super().__init__(message, retry_after_s=retry_after_s)


class QueueFull(Unavailable):
    """The model's `max_queue_size`, or the bound of its stream, is reached."""

    code = "queue-full"


class QueueTimeout(Unavailable):
    """The model's queue policy rejected the request after its queue time-out."""

    code = "queue-timeout"


class NoWorker(Unavailable):
    """No live worker serves this model."""

    code = "no-worker"


class ModelNotReady(Unavailable):
    """The model is known, but is loading or failed to load; the message gives the reason."""

    code = "model-not-ready"


class BrokerAway(Unavailable):
    """The message broker cannot be reached, or lost the stream under an open request."""

    code = "broker-away"


class Draining(Unavailable):
    """This process is shutting down and takes nothing new."""

    code = "draining"


class DeadlineExceeded(HeadraceError):
    """The caller's deadline passed before the answer was there."""

    code = "deadline-exceeded"
    http_status = 504
    grpc_status = "DEADLINE_EXCEEDED"


class ModelFailed(HeadraceError):
    """The model raised for this request, or answered something that does not fit its config."""

    code = "model-failed"


class InstanceDied(ModelFailed):
    """The process that ran the request died under it and the request may not run again."""

    code = "instance-died"


class PoisonRequest(ModelFailed):
    """The request was being executed alone each time a worker died; it is not tried again."""

    code = "poison-request"
    on_delivery = OnDelivery.TERM


class ExecutionTimeout(ModelFailed):
    """The model did not return within its `max_execution_s`; its instance was replaced."""

    code = "execution-timeout"


class Cancelled(HeadraceError):
    """The caller left or cancelled; nobody reads this answer."""

    code = "cancelled"
    http_status = 499
    grpc_status = "CANCELLED"


class NotSupported(HeadraceError):
    """A part of a protocol that does not exist here, or that this process is not set up for; no retry helps."""

    code = "not-supported"
    http_status = 501
    grpc_status = "UNIMPLEMENTED"


class InternalError(HeadraceError):
    """A fault of ours; the log has the traceback, the message has the request id."""

    code = "internal-error"


def all_errors() -> list[type[HeadraceError]]:
    """Every error class with a code of its own, parents before children."""
    found: list[type[HeadraceError]] = []
    waiting: list[type[HeadraceError]] = list(HeadraceError.__subclasses__())
    while waiting:
        cls = waiting.pop(0)
        if "code" in vars(cls):
            found.append(cls)
        waiting.extend(cls.__subclasses__())
    return found


_BY_CODE = {cls.code: cls for cls in all_errors()}


def from_wire(code: str, message: str) -> HeadraceError:
    """The error that a peer named by `code`; a code from a newer peer becomes an InternalError that shows it."""
    # One that another module defines is found although that module was imported after this one.
    cls = _BY_CODE.get(code) or next((c for c in all_errors() if c.code == code), None)
    if cls is None:
        return InternalError(f"{code}: {message}")
    return cls(message)
