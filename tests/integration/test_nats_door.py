"""The NATS door: the same requests and answers as over HTTP, and nothing published where it must not be."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from contract.model_config import TensorSpec
from contract.subjects import DoorAddress
from gateway.core import Done, InferRequest, Pending, Target
from gateway.dispatch import Dispatch
from gateway.identity import load_identity
from gateway.nats_door import NatsDoor, is_own_inbox
from gateway.settings import GatewaySettings
from tests.support.gateway_kit import card
from tests.support.lane_worker import LaneWorker
from tests.support.transports import Transports
from tests.support.waiting import Inbox, until
from transport.headers import format_headers
from transport.nats_transport import NatsTransport

TINY = card(inputs=(TensorSpec("x", "FP32", (4,)),), outputs=(TensorSpec("y", "FP32", (4,)),))
BODY = json.dumps({"id": "mine", "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]})
KEYS = f"""\
tenants:
  acme:
    keys: [{{id: web, sha256: {hashlib.sha256(b"acme-key").hexdigest()}}}]
  default:
    keys: [{{id: old, sha256: {hashlib.sha256(b"default-key").hexdigest()}}}]
"""


class House:
    """A gateway with a NATS door, a worker, and a client that sees every answer with its headers."""

    def __init__(self, gateway: Dispatch, door: NatsDoor, client: NatsTransport, worker: LaneWorker) -> None:
        self.gateway = gateway
        self.door = door
        self.client = client
        self.worker = worker
        self._n = 0

    async def send(
        self, body: bytes | str, headers: dict[str, str] | None = None, *, tenant: str = "default", reply: str = ""
    ) -> Inbox:
        """Send a request; the inbox fills with (payload, headers as a dict)."""
        answers = Inbox()
        self._n += 1
        reply = reply or f"_INBOX.{'' if self.door._identity.is_open else tenant + '.'}c{self._n}"

        def heard(_subject: str, _reply: str, payload: bytes, pairs: list[tuple[bytes, bytes]]) -> None:
            answers.append((payload, {name.decode(): value.decode() for name, value in pairs}))

        await self.client.subscribe_with_headers(reply, heard)
        self.post(body, headers, reply, tenant=tenant)
        return answers

    def post(
        self,
        body: bytes | str,
        headers: dict[str, str] | None,
        reply: str,
        *,
        tenant: str = "default",
        model: str = "tiny",
    ) -> None:
        """A client library's publish: subject, headers, reply."""
        payload = body.encode() if isinstance(body, str) else body
        subject = DoorAddress(tenant, "default", model).subject.encode()
        block = format_headers(headers.items()) if headers else b""
        self.client.link.send(subject, payload, reply.encode(), block)

    async def ask(
        self, body: bytes | str, headers: dict[str, str] | None = None, **more: str
    ) -> tuple[bytes, dict[str, str]]:
        answers = await self.send(body, headers, **more)
        await answers.has(1)
        return answers[0]


async def build(transports: Transports, tenants: Path | None) -> House:
    worker = await LaneWorker(await transports.make(), TINY).start()
    transport = await transports.make()
    settings = GatewaySettings(tenants_file=tenants)
    gateway = Dispatch(settings, transport)
    await gateway.start()
    door = NatsDoor(gateway, load_identity(tenants), transport, settings)
    await door.start()
    return House(gateway, door, await transports.make(), worker)


@pytest.fixture
async def house(transports: Transports) -> AsyncIterator[House]:
    built = await build(transports, None)
    yield built
    await built.door.close()
    await built.gateway.close()


@pytest.fixture
async def keyed(transports: Transports, tmp_path: Path) -> AsyncIterator[House]:
    file = tmp_path / "tenants.yaml"
    file.write_text(KEYS)
    built = await build(transports, file)
    yield built
    await built.door.close()
    await built.gateway.close()


async def test_a_json_request_is_answered_in_json(house: House) -> None:
    payload, headers = await house.ask(BODY, {"x-request-id": "r-7"})
    answer = json.loads(payload)
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("tiny", "1", "mine")
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]
    assert headers == {"headrace-status": "200", "x-request-id": "r-7"}


async def test_a_binary_request_is_answered_in_binary(house: House) -> None:
    tensor = np.arange(4, dtype="<f4").tobytes()
    head = json.dumps(
        {
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    payload, headers = await house.ask(head + tensor, {"Inference-Header-Content-Length": str(len(head))})
    length = int(headers["inference-header-content-length"])
    assert json.loads(payload[:length])["outputs"][0]["parameters"] == {"binary_data_size": 16}
    assert payload[length:] == tensor
    assert headers["headrace-status"] == "200"


async def test_a_plain_request_without_headers_is_answered(house: House) -> None:
    answer = await house.client.request(DoorAddress("default", "default", "tiny").subject, BODY.encode(), 10.0)
    assert json.loads(answer)["id"] == "mine"


@pytest.mark.parametrize(
    ("body", "headers", "status", "code"),
    [
        ("{", {}, "400", "invalid-input"),
        (BODY, {"Headrace-Timeout-Ms": "soon"}, "400", "invalid-input"),
        (BODY, {"Inference-Header-Content-Length": "99999"}, "400", "invalid-input"),
        (BODY, {"Headrace-Model-Version": "7"}, "404", "not-found"),
    ],
)
async def test_a_refusal_has_status_code_and_words(
    house: House, body: str, headers: dict[str, str], status: str, code: str
) -> None:
    payload, answered = await house.ask(body, headers)
    assert (answered["headrace-status"], answered["headrace-error"]) == (status, code)
    assert json.loads(payload)["error"]
    assert json.loads(payload)["code"] == code


async def test_a_failed_request_leaves_one_log_line(house: House) -> None:
    with capture_logs() as events:
        await house.ask("{", {"x-request-id": "r-7"})
        await house.ask(BODY)
    (event,) = [event for event in events if event["event"] == "request-failed"]
    assert (event["log_level"], event["code"], event["status"]) == ("debug", "invalid-input", 400)
    assert (event["request_id"], event["tenant"], event["model"]) == ("r-7", "default", "tiny")


@pytest.mark.parametrize("sent", ["00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "nonsense"])
async def test_the_trace_context_travels_to_the_worker_and_only_if_it_is_one(house: House, sent: str) -> None:
    await house.ask(BODY, {"traceparent": sent, "x-request-id": "r-7"})
    (head,) = house.worker.received[0].message.requests
    assert head.traceparent == (sent if sent != "nonsense" else "")
    assert (head.tenant, head.request_id, head.caller_id) == ("default", "r-7", "mine")


async def test_a_request_with_an_idempotency_key_is_refused_rather_than_run_twice(house: House) -> None:
    _, headers = await house.ask(BODY, {"Idempotency-Key": "k"})
    assert (headers["headrace-status"], headers["headrace-error"]) == ("501", "not-supported")


async def test_the_deadline_of_the_header_holds(house: House) -> None:
    house.worker.echoes = False
    _, headers = await house.ask(BODY, {"Headrace-Timeout-Ms": "100"})
    assert (headers["headrace-status"], headers["headrace-error"]) == ("504", "deadline-exceeded")


async def test_an_answer_over_the_brokers_limit_is_an_error_with_both_numbers(house: House) -> None:
    shape = [1, 4]
    data = {"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": [1, 2, 3, 4]}], "id": "i" * 1_048_400}
    payload, headers = await house.ask(json.dumps(data))
    assert headers["headrace-status"] in ("413", "400")
    assert json.loads(payload)["code"] in ("too-large", "invalid-input")


# ---------------------------------------------------------------------- whom it answers


@pytest.mark.parametrize(
    "reply",
    ["$JS.API.STREAM.PURGE.HR_ON_default_0", "q.0.default.tiny.any.norm", "infer.default.default.tiny", "INBOX.x"],
)
async def test_a_reply_subject_that_is_no_inbox_is_never_published_to(house: House, reply: str) -> None:
    house.worker.echoes = False
    waiting = await house.send(BODY)
    await until(lambda: len(house.worker.received) == 1)
    before = house.worker.num_requests()
    house.post(BODY, None, reply)
    await until(lambda: house.door.num_unanswerable == 1)
    # Our own answer still arrives: the queue was not purged and nothing else was put into it.
    assert house.worker.num_requests() == before
    house.worker.echo(house.worker.received[0])
    await waiting.has(1)


async def test_a_request_nobody_can_be_told_about_is_dropped(house: House) -> None:
    house.post(BODY, None, "")
    await until(lambda: house.door.num_unanswerable == 1)
    assert house.worker.num_requests() == 0


async def test_a_foreign_tenant_is_unknown_where_there_are_no_tenants(house: House) -> None:
    _, headers = await house.ask(BODY, tenant="acme", reply="_INBOX.acme.1")
    assert headers["headrace-status"] == "404"


async def test_a_key_opens_its_own_tenants_door_only(keyed: House) -> None:
    _, headers = await keyed.ask(BODY, {"Authorization": "Bearer acme-key"}, tenant="acme")
    assert headers["headrace-status"] == "200"
    foreign = await keyed.ask(BODY, {"Authorization": "Bearer default-key"}, tenant="acme")
    unknown = await keyed.ask(BODY, {"Authorization": "Bearer nope"}, tenant="acme")
    assert foreign[0] == unknown[0]
    assert foreign[1]["headrace-status"] == "401"
    _, headers = await keyed.ask(BODY, tenant="acme")
    assert headers["headrace-error"] == "unauthenticated"


@pytest.mark.parametrize(("tenant", "key"), [("acme", "acme-key"), ("default", "default-key")])
@pytest.mark.parametrize("reply", ["_INBOX.globex.1", "_INBOX.x", "_INBOX.acmes.1", "$JS.API.STREAM.PURGE.X"])
async def test_with_keys_no_tenant_is_answered_in_anothers_inbox(
    keyed: House, tenant: str, key: str, reply: str
) -> None:
    got = Inbox()
    await keyed.client.subscribe(reply, lambda s, r, p: got.append(p))
    keyed.post(BODY, {"Authorization": f"Bearer {key}"}, reply, tenant=tenant)
    await until(lambda: keyed.door.num_unanswerable == 1)
    assert not got
    assert keyed.worker.num_requests() == 0


@pytest.mark.parametrize(
    ("reply", "tenant", "is_open", "is_own"),
    [
        ("_INBOX.abc.q.1", "default", True, True),
        ("_INBOX.acme.1", "acme", False, True),
        ("_INBOX.default.1", "default", False, True),
        ("_INBOX.acme.1", "default", False, False),
        ("_INBOX.acme", "acme", False, False),
        ("_INBOX.acme.", "acme", False, False),
        ("_INBOX.acme.>", "acme", False, False),
        ("_INBOX.acme.*.x", "acme", False, False),
        ("_INBOX.acme.a..b", "acme", False, False),
        ("_INBOX.", "default", True, False),
        ("", "default", True, False),
    ],
)
def test_a_tenants_inbox_is_under_its_own_prefix(reply: str, tenant: str, is_open: bool, is_own: bool) -> None:
    assert is_own_inbox(reply, tenant, is_open=is_open) is is_own


# ---------------------------------------------------------------------- life


async def test_gateways_share_the_door(transports: Transports) -> None:
    first, second = await build(transports, None), await build(transports, None)
    for n in range(40):
        await first.ask(BODY, reply=f"_INBOX.n{n}")
    for house in (first, second):
        assert house.door.num_ended[""] > 0
    assert sum((first.door.num_ended + second.door.num_ended).values()) == 40
    for house in (first, second):
        await house.door.close()
        await house.gateway.close()


async def test_a_draining_door_answers_what_it_took(house: House) -> None:
    house.worker.echoes = False
    answers = await house.send(BODY)
    await until(lambda: len(house.worker.received) == 1)
    draining = asyncio.create_task(house.door.drain(10.0))
    await until(lambda: house.door._subscription is None)
    assert not draining.done()
    house.worker.echo(house.worker.received[0])
    await draining
    await answers.has(1)


async def test_a_core_that_breaks_is_an_internal_error_and_the_door_stays(house: House) -> None:
    class Broken:
        def resolve(self, *_args: object) -> Target:
            raise ZeroDivisionError

        def submit(self, _target: Target, _request: InferRequest, _done: Done) -> Pending:
            raise ZeroDivisionError

    whole, house.door._core = house.door._core, Broken()  # type: ignore[assignment]
    _, headers = await house.ask(BODY)
    assert headers["headrace-status"] == "500"
    house.door._core = whole
    _, headers = await house.ask(BODY)
    assert headers["headrace-status"] == "200"
