"""subjects.md against the code: every subject, stream, message and field is the code's, and none is missing."""

import inspect
import re
from pathlib import Path

import msgspec
import pytest

from contract import envelope, messages, streams, subjects
from contract.errors import QueueFull
from contract.subjects import DoorAddress, LaneAddress
from gateway import nats_door
from gateway.http import headers as h
from gateway.http.errors import error_headers

PAGE = (Path(__file__).parents[2] / "subjects.md").read_text()

ADDRESS = LaneAddress("GROUP", "MODEL", "VERSION", "LANE", "EPOCH")  # type: ignore[arg-type]
PATTERNS = {
    "infer": DoorAddress("TENANT", "SERVICE", "MODEL").subject,
    "requests of one lane": ADDRESS.subject,
    "all lanes of a model": subjects.model_subjects("GROUP", "MODEL", "EPOCH"),
    "all lanes of a group": subjects.online_subjects("GROUP", "EPOCH"),
    "a part of a payload by reference": subjects.blob_subject("OWNER", "BLOB", "PART"),  # type: ignore[arg-type]
    "all such parts": subjects.BLOB_SUBJECTS,
    "a note before an execution alone": subjects.started_subject("GROUP", "GATEWAY", "ID"),  # type: ignore[arg-type]
    "all such notes": subjects.STARTED_SUBJECTS,
    "one attempt under an idempotency key": subjects.idempotency_subject("TOKEN", "ATTEMPT", "WHAT"),  # type: ignore[arg-type]
    "all of them": subjects.IDEMPOTENCY_SUBJECTS,
    "usage of one gateway life on a day": subjects.usage_subject("DAY", "SLOT", "PART"),  # type: ignore[arg-type]
    "all usage": subjects.USAGE_SUBJECTS,
    "who has a slot of a day": subjects.usage_slot_subject("DAY", "SLOT"),  # type: ignore[arg-type]
    "all slots": subjects.USAGE_SLOT_SUBJECTS,
    "cancels for a group's workers": subjects.cancel_subject("GROUP"),
    "a starting worker asks for open cancels": subjects.open_cancels_subject("GROUP"),
    "is anybody there that serves a model": subjects.alive_subject("GROUP", "MODEL"),
    "heartbeat of a gateway": subjects.gateway_beat_subject("GATEWAY"),
    "heartbeats of all gateways": subjects.GATEWAY_BEATS,
    "heartbeat of a worker": subjects.worker_beat_subject("GROUP", "WORKER"),
    "heartbeats of all workers": subjects.WORKER_BEATS,
    "everybody, beat now": subjects.ASK_BEATS,
    "control of one worker": subjects.worker_control_subject("WORKER"),
}


def as_pattern(text: str) -> str:
    return re.sub(r"[A-Z]{2,}", lambda m: f"<{m[0].lower()}>", text)


def rows_of(heading: str) -> list[list[str]]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][1:]


def test_every_subject_is_written_as_the_code_builds_it() -> None:
    written = {what: pattern.strip("`") for what, pattern, *_ in rows_of("Between gateways and workers")}
    written["infer"] = rows_of("The door for clients")[0][1].strip("`")
    assert written == {what: as_pattern(pattern) for what, pattern in PATTERNS.items()}


def test_no_function_that_makes_a_subject_is_left_out_here() -> None:
    source = inspect.getsource(inspect.getmodule(test_no_function_that_makes_a_subject_is_left_out_here))
    makers = [n for n, f in inspect.getmembers(subjects, inspect.isfunction) if n.endswith(("_subject", "_subjects"))]
    constants = [n for n in vars(subjects) if n.endswith(("_SUBJECTS", "_BEATS"))]
    assert [n for n in makers + constants if f"subjects.{n}" not in source] == []


def test_the_doors_listen_where_the_page_says() -> None:
    assert f"`{subjects.INFER_DOOR}`" in PAGE
    assert f"queue group `{subjects.DOOR_QUEUE}`" in PAGE


@pytest.mark.parametrize(
    ("name", "token"), re.findall(r"`([^`]+)`\s+is\s+`([^`]*=[0-9A-F]{2}[^`]*)`", PAGE), ids=lambda x: x
)
def test_the_examples_of_encoding_are_right(name: str, token: str) -> None:
    assert subjects.encode_token(name) == token
    assert subjects.decode_token(token) == name


def test_there_are_examples_of_encoding() -> None:
    assert len(re.findall(r"`([^`]+)`\s+is\s+`([^`]*=[0-9A-F]{2}[^`]*)`", PAGE)) == 3


def test_the_consumer_is_named_as_the_page_says() -> None:
    assert f"`{as_pattern(ADDRESS.consumer)}`" in PAGE


def test_streams_are_described_as_they_are_created() -> None:
    limits = streams.BrokerLimits()
    specs = [
        streams.online_stream("GROUP", limits, "EPOCH"),
        streams.blob_stream(limits),
        streams.started_stream(),
        streams.usage_stream(),
        streams.usage_slot_stream(),
        streams.idempotency_stream(),
    ]
    wanted = [
        [
            f"`{spec.name.replace('GROUP', '<group>').replace('EPOCH', '<epoch>')}`",
            f"`{as_pattern(spec.subjects[0])}`",
            spec.storage,
            spec.retention,
            {"new": "refuse new", "old": "drop old"}[spec.discard],
            f"{spec.max_age_s:.0f} s",
        ]
        for spec in specs
    ]
    assert rows_of("Streams and consumers") == wanted
    assert f"`ack_wait` is {streams.ACK_WAIT_S:.0f} s" in PAGE
    assert f'"in progress" every {streams.IN_PROGRESS_S} s' in PAGE
    assert f"{streams.BLOB_PART_BYTES:,} bytes" in PAGE


def test_the_format_and_the_kinds_are_the_envelopes() -> None:
    assert f"This is format {envelope.FORMAT_MAJOR}.{envelope.FORMAT_MINOR}." in PAGE
    written = [(int(number), kind.strip("`"), form) for number, kind, form, _ in rows_of("The envelope")[1:]]
    forms = {cls: "array" if cls.__struct_config__.array_like else "map" for cls in envelope._KINDS}
    assert written == [(number, cls.__name__, forms[cls]) for cls, number in envelope._KINDS.items()]


STRUCTS = [
    cls
    for _, cls in inspect.getmembers(messages, inspect.isclass)
    if issubclass(cls, msgspec.Struct) and cls.__module__ == messages.__name__
]


@pytest.mark.parametrize("message", STRUCTS, ids=lambda m: m.__name__)
def test_every_message_lists_its_fields_in_order(message: type[msgspec.Struct]) -> None:
    found = re.search(rf"^\*\*{message.__name__}\*\*(.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"{message.__name__} is not described"
    assert re.findall(r"`(\w+)`", found[1]) == [f.name for f in msgspec.structs.fields(message)]


def test_the_headers_of_the_door_are_those_it_reads_and_sends() -> None:
    read = {"Authorization", nats_door.VERSION.decode(), h.TIMEOUT.decode(), h.INFERENCE_LENGTH.decode()}
    read |= {h.REQUEST_ID.decode(), h.TRACEPARENT.decode()}
    sent = {nats_door.STATUS, h.INFERENCE_LENGTH.decode(), h.REQUEST_ID.decode(), *error_headers(QueueFull("full"))}
    rows = [row[0].strip("`").lower() for row in rows_of("The door for clients") if not row[0].startswith("header")]
    (middle,) = [at for at, name in enumerate(rows) if name == nats_door.STATUS.lower()]
    assert set(rows[1:middle]) == {name.lower() for name in read}
    assert set(rows[middle:]) == {name.lower() for name in sent}
