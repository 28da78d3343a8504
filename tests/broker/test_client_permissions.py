"""The users that `headrace nats-config` writes, on a real nats-server."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contract.subjects import DoorAddress
from headrace.cli import app
from tests.support.broker import Broker
from tests.support.waiting import Inbox
from transport import connect
from transport.base import TransportError
from transport.nats_transport import NatsTransport
from transport.settings import BrokerSettings

TENANT = "acme > *.co"
USER = "acme=20=3E=20=2A=2Eco"
BCRYPT = "$2a$04$abcdefghijklmnopqrstuu3OkRWAufKKHuKyh9/ULYNTwm/MSTDJO"  # of acme-pw
TENANTS = f"""\
tenants:
  "{TENANT}":
    broker_password_bcrypt: "{BCRYPT}"
    keys: [{{id: web, sha256: {hashlib.sha256(b"k").hexdigest()}}}]
  silent:
    keys: [{{id: web, sha256: {hashlib.sha256(b"s").hexdigest()}}}]
"""


def written(folder: Path, user: str = "headrace") -> tuple[int, str]:
    (folder / "tenants.yaml").write_text(TENANTS)
    (folder / "own-pw").write_text('gate"way\nsecond line\n')
    values = {
        "gateway.tenants_file": folder / "tenants.yaml",
        "broker.user": user,
        "broker.password_file": folder / "own-pw",
    }
    sets = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    result = CliRunner().invoke(app, ["nats-config", *sets])
    return result.exit_code, result.output


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Broker]:
    code, text = written(tmp_path)
    assert code == 0, text
    (tmp_path / "users.conf").write_text(text)
    server = Broker(tmp_path, more="include ./users.conf")
    await server.start()
    yield server
    server.kill()


async def opened(broker: Broker, user: str, password: str) -> NatsTransport:
    file = broker.folder / f"pw-{user}"
    file.write_text(password)
    return await connect(
        BrokerSettings(servers=[broker.url], user=user, password_file=file, connect_timeout_s=5), "test"
    )


async def test_the_gateways_user_hears_what_a_client_may_send_and_nothing_else(guarded: Broker) -> None:
    gateway = await opened(guarded, "headrace", 'gate"way')
    heard = Inbox()
    await gateway.subscribe(">", lambda subject, _r, _p: heard.append(subject))
    fine = DoorAddress(TENANT, "default", "m").subject
    forbidden = [
        DoorAddress("silent", "default", "m").subject,
        "$JS.API.STREAM.NAMES",
        "$JS.API.STREAM.PURGE.HR_ON_default_0",
        "q.0.default.m.any.norm",
        "cancel.default",
        "hb.ask",
        "_INBOX.silent.x",
        f"tokens.{USER}.x",
    ]
    client = await opened_raw(guarded)
    for subject in (*forbidden, fine):
        await client.publish(subject, b"x")
    await client.flush()
    await heard.has(1)
    assert [s for s in heard if s in forbidden or s == fine] == [fine]
    await client.close()
    await gateway.close()


async def opened_raw(broker: Broker):  # type: ignore[no-untyped-def]
    import nats

    async def ignore(_error: Exception) -> None:
        """Every refusal is reported here."""

    return await nats.connect(broker.url, user=USER, password="acme-pw", error_cb=ignore)


async def test_a_client_hears_its_own_inbox_and_tokens_and_nothing_else(guarded: Broker) -> None:
    gateway = await opened(guarded, "headrace", 'gate"way')
    client = await opened_raw(guarded)
    heard = Inbox()

    async def note(message) -> None:  # type: ignore[no-untyped-def]
        heard.append(message.subject)

    own = [f"tokens.{USER}.r1", f"_INBOX.{USER}.1"]
    foreign = ["tokens.silent.r1", "_INBOX.silent.1", "q.0.default.m.any.norm", "hb.ask"]
    for subject in (*foreign, ">", f"tokens.{USER}.>", f"_INBOX.{USER}.>"):
        await client.subscribe(subject, cb=note)
    await client.flush()
    for subject in (*foreign, *own):
        gateway.publish(subject, b"x")
    await heard.has(2)
    await client.flush()
    assert heard == own
    await client.close()
    await gateway.close()


async def test_a_tenant_without_a_password_has_no_user(guarded: Broker) -> None:
    with pytest.raises(TransportError):
        await opened(guarded, "silent", "")


def test_a_tenant_with_the_gateways_user_is_refused(tmp_path: Path) -> None:
    code, text = written(tmp_path, USER)
    assert code == 1
    assert "rename one of them" in text
