"""Every subject, lane, stream and consumer name, and the reversible encoding of names into subject tokens.

Builds and parses; publishes nothing. `subjects.md` says the same in prose and a test holds the two equal.

Invariants: `decode_token(encode_token(x)) == x` for every legal name; no encoded name holds a character that is
special in a subject, a stream name or a consumer name (tests/property/test_subjects.py).
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from contract.errors import InvalidInput

Lane = Literal["hi", "norm"]
LANES: Final[tuple[Lane, ...]] = ("hi", "norm")
ANY_VERSION: Final = "any"
MAX_NAME_BYTES: Final = 128

_PLAIN = re.compile(r"[A-Za-z0-9_-]+\Z")
_PLAIN_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPE = re.compile(r"=([0-9A-F]{2})")


def check_name(name: str, what: str = "name") -> str:
    """`name` itself if it may name a service, group, model or tenant.

    Raises:
        InvalidInput: it is empty, over 128 bytes of UTF-8, not UTF-8, or holds a control character.
    """
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{what} {name!r} is not valid UTF-8") from None
    if not name.strip():
        raise InvalidInput(f"{what} is empty")
    if size > MAX_NAME_BYTES:
        raise InvalidInput(f"{what} has {size} bytes, at most {MAX_NAME_BYTES} are allowed")
    if any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in name):
        raise InvalidInput(f"{what} {name!r} holds a control character")
    return name


def encode_token(name: str) -> str:
    """One subject token for `name`: letters, digits, `_` and `-` as they are, every other byte as `=XX`."""
    if _PLAIN.match(name):
        return name
    return "".join(chr(b) if b in _PLAIN_BYTES else f"={b:02X}" for b in name.encode())


def decode_token(token: str) -> str:
    """The name that `encode_token` made `token` from.

    Raises:
        InvalidInput: no name encodes to this token.
    """
    raw = _ESCAPE.sub(lambda m: chr(int(m[1], 16)), token)
    try:
        name = raw.encode("latin-1").decode()
    except UnicodeError:
        raise InvalidInput(f"token {token!r} is not an encoded name") from None
    if encode_token(name) != token:
        raise InvalidInput(f"token {token!r} is not an encoded name")
    return name


# ------------------------------------------------------------------ online queue


class LaneAddress(NamedTuple):
    """One lane of a model's online queue; `version` is a version number in digits or `any`."""

    group: str
    model: str
    version: str
    lane: Lane
    epoch: str = "0"

    @property
    def subject(self) -> str:
        """Subject that carries this lane's requests."""
        tokens = (self.epoch, encode_token(self.group), encode_token(self.model), self.version, self.lane)
        return "q." + ".".join(tokens)

    @property
    def stream(self) -> str:
        """Stream that keeps them."""
        return online_stream_name(self.group, self.epoch)

    @property
    def consumer(self) -> str:
        """Durable consumer from which workers pull them."""
        return f"{encode_token(self.model)}+{self.version}+{self.lane}"


def online_stream_name(group: str, epoch: str = "0") -> str:
    """Stream of a group's online queue; a new epoch replaces a stream that died with its node."""
    return f"HR_ON_{encode_token(group)}_{epoch}"


def online_subjects(group: str, epoch: str = "0") -> str:
    """Filter for all lanes of a group."""
    return f"q.{epoch}.{encode_token(group)}.>"


def model_subjects(group: str, model: str, epoch: str = "0") -> str:
    """Filter for all lanes of one model, to purge what is left when it goes."""
    return f"q.{epoch}.{encode_token(group)}.{encode_token(model)}.>"


# ------------------------------------------------------------------ beside the queue

BLOB_STREAM: Final = "HR_BLOBS"
BLOB_SUBJECTS: Final = "blob.>"
STARTED_STREAM: Final = "HR_STARTED"
STARTED_SUBJECTS: Final = "started.>"
USAGE_STREAM: Final = "HR_USAGE"
USAGE_SUBJECTS: Final = "usage.>"
USAGE_SLOT_STREAM: Final = "HR_USAGE_SLOTS"
USAGE_SLOT_SUBJECTS: Final = "usageslot.>"
IDEMPOTENCY_STREAM: Final = "HR_IDEMPOTENCY"
IDEMPOTENCY_SUBJECTS: Final = "idem.>"
GATEWAY_BEATS: Final = "hb.gateway.*"
WORKER_BEATS: Final = "hb.worker.*.*"
ASK_BEATS: Final = "hb.ask"
"""A newcomer publishes here once; every gateway and worker answers with a heartbeat at once."""


def idempotency_subject(token: str, attempt: int, what: Literal["claim", "end"]) -> str:
    """Subject of the claim, or the end, of one attempt under an idempotency key; `token` is a digest in hex."""
    return f"idem.{token}.{attempt}.{what}"


def usage_subject(day: str, slot: int, part: int) -> str:
    """Subject of one part of a gateway life's usage on a day."""
    return f"usage.{day}.{slot}.{part}"


def usage_slot_subject(day: str, slot: int) -> str:
    """Subject whose first writer has this slot of the day."""
    return f"usageslot.{day}.{slot}"


def blob_subject(owner: str, blob_id: str, part: int | Literal["*"]) -> str:
    """Subject of one part of a payload that travels by reference; `*` filters all its parts."""
    return f"blob.{owner}.{blob_id}.{part}"


def started_subject(group: str, gateway: str, request: int) -> str:
    """Where a worker notes that it is about to run, alone, a request that was delivered before."""
    return f"started.{encode_token(group)}.{gateway}.{request}"


def cancel_subject(group: str) -> str:
    """Cancels for a group's workers."""
    return f"cancel.{encode_token(group)}"


def open_cancels_subject(group: str) -> str:
    """A starting worker asks here; each live gateway answers with its open cancels."""
    return f"cancels.{encode_token(group)}"


def alive_subject(group: str, model: str) -> str:
    """Presence: every worker that serves the model answers; the broker's "no responders" says that none is there."""
    return f"alive.{encode_token(group)}.{encode_token(model)}"


def gateway_beat_subject(gateway: str) -> str:
    """Heartbeats of one gateway."""
    return f"hb.gateway.{gateway}"


def worker_beat_subject(group: str, worker: str) -> str:
    """Heartbeats of one worker."""
    return f"hb.worker.{encode_token(group)}.{worker}"


def worker_control_subject(worker: str) -> str:
    """Requests to one worker: drain, load, unload."""
    return f"ctl.worker.{worker}"


# ------------------------------------------------------------------ doors

INFER_DOOR: Final = "infer.*.*.*"
DOOR_QUEUE: Final = "gateways"


class DoorAddress(NamedTuple):
    """What a client's door subject names."""

    tenant: str
    service: str
    model: str

    @property
    def subject(self) -> str:
        """Subject a client sends its request to."""
        return f"infer.{encode_token(self.tenant)}.{encode_token(self.service)}.{encode_token(self.model)}"


def parse_infer(subject: str) -> DoorAddress:
    """Tenant, service and model of an `infer.…` door subject.

    Raises:
        InvalidInput: another form, or a token that is not an encoded, legal name.
    """
    parts = subject.split(".")
    if len(parts) != 4 or parts[0] != "infer":
        raise InvalidInput(f"subject {subject!r} is not infer.<tenant>.<service>.<model>")
    tenant, service, model = (decode_token(p) for p in parts[1:])
    return DoorAddress(check_name(tenant, "tenant"), check_name(service, "service"), check_name(model, "model"))


def tenant_inbox(tenant: str) -> str:
    """Prefix that a tenant's reply subjects must have, final dot included.

    The tenant `default`, on a broker without users, may use any inbox.
    """
    return "_INBOX." if tenant == "default" else f"_INBOX.{encode_token(tenant)}."
