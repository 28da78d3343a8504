"""What each stream and consumer must look like, as pure functions of names and limits. Creates nothing.

Nobody sets a stream's values from configuration of his own: two processes that disagree would overwrite each other.

Source: docs/decisions/0001-pull-with-credits.md
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from contract import subjects
from contract.deadline import MAX_TIMEOUT_MS
from contract.subjects import LaneAddress

NS_PER_S: Final = 1_000_000_000
MIB: Final = 1024 * 1024

ACK_WAIT_S: Final = 2.0
"""A message whose holder was silent this long goes to another worker, whatever the model."""
IN_PROGRESS_S: Final = 0.5
"""How often a holder says that it still has a message."""
PULL_EXPIRES_S: Final = 1.0
"""Every pull ends after this, always under ACK_WAIT_S: a frozen worker can't be fed the same message twice."""
PULL_HEARTBEAT_S: Final = 0.5
PULL_MAX_BYTES: Final = 32 * MIB
BLOB_PART_BYTES: Final = MIB - 64 * 1024
"""Under the broker's default max_payload of 1 MiB, with room for the prefix."""
MESSAGE_BYTES: Final = 64 * 1024
"""A coalesced message stops growing here."""
BEAT_S: Final = 1.0
DEAD_AFTER_S: Final = 3.0
"""A peer whose last heartbeat is older is dead."""


class StreamSpec(msgspec.Struct, frozen=True):
    """A JetStream stream."""

    name: str
    subjects: tuple[str, ...]
    storage: Literal["memory", "file"]
    retention: Literal["workqueue", "limits"]
    discard: Literal["new", "old"]
    max_age_s: float = 0.0
    max_msgs: int = -1
    max_bytes: int = -1
    max_msgs_per_subject: int = -1
    discard_new_per_subject: bool = False
    allow_direct: bool = False
    num_replicas: int = 1

    def to_api(self) -> dict[str, Any]:
        """The `STREAM.CREATE` request's fields."""
        return {
            "name": self.name,
            "subjects": list(self.subjects),
            "storage": self.storage,
            "retention": self.retention,
            "discard": self.discard,
            "max_age": int(self.max_age_s * NS_PER_S),
            "max_msgs": self.max_msgs,
            "max_bytes": self.max_bytes,
            "max_msgs_per_subject": self.max_msgs_per_subject,
            "discard_new_per_subject": self.discard_new_per_subject,
            "allow_direct": self.allow_direct,
            "num_replicas": self.num_replicas,
        }


class ConsumerSpec(msgspec.Struct, frozen=True):
    """A durable pull consumer with explicit acks."""

    stream: str
    name: str
    filter_subject: str
    ack_wait_s: float = ACK_WAIT_S
    max_ack_pending: int = 65_536
    max_waiting: int = 8_192

    def to_api(self) -> dict[str, Any]:
        """The consumer's `config` in a `CONSUMER.CREATE` request.

        `max_deliver` is -1: deliveries count prefetch and freezes too, so they never prove a request guilty.
        """
        return {
            "durable_name": self.name,
            "name": self.name,
            "filter_subject": self.filter_subject,
            "ack_policy": "explicit",
            "ack_wait": int(self.ack_wait_s * NS_PER_S),
            "max_deliver": -1,
            "max_ack_pending": self.max_ack_pending,
            "max_waiting": self.max_waiting,
            "deliver_policy": "all",
            "replay_policy": "instant",
            "mem_storage": True,
            "num_replicas": 1,
        }


class BrokerLimits(msgspec.Struct, frozen=True):
    """How much of the broker's memory each kind of stream may take; reserved when the stream is created."""

    online_max_msgs: int = 100_000
    online_max_bytes: int = 128 * MIB
    blob_max_bytes: int = 512 * MIB


def online_stream(group: str, limits: BrokerLimits, epoch: str = "0") -> StreamSpec:
    """A group's online queue: memory, work queue; full means `queue-full`, nothing is dropped in silence."""
    return StreamSpec(
        name=subjects.online_stream_name(group, epoch),
        subjects=(subjects.online_subjects(group, epoch),),
        storage="memory",
        retention="workqueue",
        discard="new",
        max_age_s=MAX_TIMEOUT_MS / 1000 + 30,
        max_msgs=limits.online_max_msgs,
        max_bytes=limits.online_max_bytes,
    )


def blob_stream(limits: BrokerLimits) -> StreamSpec:
    """Payloads that travel by reference; purged when the answer is out, gone after two minutes whatever happens."""
    return StreamSpec(
        name=subjects.BLOB_STREAM,
        subjects=(subjects.BLOB_SUBJECTS,),
        storage="memory",
        retention="limits",
        discard="new",
        max_age_s=120,
        max_bytes=limits.blob_max_bytes,
        allow_direct=True,
    )


def started_stream() -> StreamSpec:
    """What was started alone after a redelivery; the last note per request counts."""
    return StreamSpec(
        name=subjects.STARTED_STREAM,
        subjects=(subjects.STARTED_SUBJECTS,),
        storage="memory",
        retention="limits",
        discard="old",
        max_age_s=MAX_TIMEOUT_MS / 1000 + 30,
        max_bytes=8 * MIB,
        max_msgs_per_subject=1,
        allow_direct=True,
    )


def usage_stream() -> StreamSpec:
    """Usage by day, gateway life and part: the last totals count, for 400 days."""
    return StreamSpec(
        name=subjects.USAGE_STREAM,
        subjects=(subjects.USAGE_SUBJECTS,),
        storage="file",
        retention="limits",
        discard="new",
        max_age_s=400 * 86_400,
        max_bytes=64 * MIB,
        max_msgs_per_subject=1,
        allow_direct=True,
    )


def usage_slot_stream() -> StreamSpec:
    """Which slots of a day are taken: the first to write one has it."""
    return StreamSpec(
        name=subjects.USAGE_SLOT_STREAM,
        subjects=(subjects.USAGE_SLOT_SUBJECTS,),
        storage="file",
        retention="limits",
        discard="new",
        max_age_s=401 * 86_400,
        max_bytes=8 * MIB,
        max_msgs_per_subject=1,
        discard_new_per_subject=True,
        allow_direct=True,
    )


def idempotency_stream() -> StreamSpec:
    """Who runs a request with an idempotency key and how it ended: the first to write a subject has it for a day.

    On disk: a broker that starts again must not let what ran run twice.
    """
    return StreamSpec(
        name=subjects.IDEMPOTENCY_STREAM,
        subjects=(subjects.IDEMPOTENCY_SUBJECTS,),
        storage="file",
        retention="limits",
        discard="new",
        max_age_s=86_400,
        max_bytes=128 * MIB,
        max_msgs_per_subject=1,
        discard_new_per_subject=True,
        allow_direct=True,
    )


def lane_consumer(address: LaneAddress) -> ConsumerSpec:
    """The consumer of one lane."""
    return ConsumerSpec(stream=address.stream, name=address.consumer, filter_subject=address.subject)
