"""Reaching a real nats-server: users, TLS, a broker that is not there, hangs, or comes back."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from contract.streams import BrokerLimits, blob_stream, online_stream
from contract.subjects import LaneAddress
from tests.broker.conftest import Make
from tests.support.broker import Broker, free_port
from tests.support.taker import Taker
from tests.support.waiting import Inbox, until
from transport import connect
from transport.base import StreamGone, TransportError
from transport.settings import BrokerSettings

LANE = LaneAddress("g", "m", "any", "norm")
ONLINE = online_stream("g", BrokerLimits(online_max_bytes=16 * 1024 * 1024))


async def test_nobody_there_is_an_error_that_names_the_servers(tmp_path: Path) -> None:
    port = free_port()
    settings = BrokerSettings(servers=[f"nats://127.0.0.1:{port}"], connect_timeout_s=0.5)
    started_s = time.monotonic()
    with pytest.raises(TransportError, match=rf"127\.0\.0\.1:{port}"):
        await connect(settings, "x")
    assert time.monotonic() - started_s < 5


async def test_a_broker_that_starts_late_is_met_at_once(tmp_path: Path) -> None:
    server = Broker(tmp_path)
    connecting = asyncio.ensure_future(connect(server.settings, "early"))
    await asyncio.sleep(0.2)
    await server.start()
    transport = await connecting
    assert transport.is_connected
    await transport.close()
    server.kill()


async def test_the_second_server_is_taken_when_the_first_is_down(broker: Broker, make: Make) -> None:
    transport = await make(
        broker.settings.model_copy(update={"servers": [f"nats://127.0.0.1:{free_port()}", broker.url]})
    )
    assert transport.is_connected


@pytest.mark.parametrize("signal_first", [True, False])
async def test_a_broker_killed_and_started_again_is_found_again(broker: Broker, make: Make, signal_first: bool) -> None:
    transport = await make()
    got, lost = Inbox(), Inbox()
    transport.on_disconnect(lambda: lost.append(True))
    await transport.subscribe("x", lambda s, r, p: got.append(p))
    for n in range(1, 3):
        if signal_first:
            broker.kill()
            await lost.has(n)
            await broker.start()
        else:
            await broker.restart()
        await until(lambda n=n: transport.num_reconnects == n and transport.is_connected)
        transport.publish("x", b"%d" % n)
        await got.has(n)
    assert got == [b"1", b"2"]


async def test_a_broker_that_hangs_is_noticed_and_found_again(broker: Broker, make: Make) -> None:
    transport = await make()
    lost = Inbox()
    transport.on_disconnect(lambda: lost.append(True))
    with broker.pause():
        await lost.has(1, within_s=30)
        assert not transport.is_connected
    await until(lambda: transport.is_connected, within_s=30)


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Broker]:
    server = Broker(tmp_path, more='authorization { users: [{user: "gw", password: "s3cret"}] }')
    await server.start()
    yield server
    server.kill()


def with_user(broker: Broker, folder: Path, password: str) -> BrokerSettings:
    file = folder / f"password-{password}"
    file.write_text(f"{password}\nnot this line\n")
    return BrokerSettings(servers=[broker.url], user="gw", password_file=file, connect_timeout_s=5)


async def test_a_user_with_the_right_password_is_let_in_again_and_again(guarded: Broker, tmp_path: Path) -> None:
    transport = await connect(with_user(guarded, tmp_path, "s3cret"), "x")
    await guarded.restart()
    await until(lambda: transport.num_reconnects == 1 and transport.is_connected)
    await transport.close()


async def test_a_wrong_password_is_an_error_that_says_so(guarded: Broker, tmp_path: Path) -> None:
    settings = with_user(guarded, tmp_path, "wrong").model_copy(update={"connect_timeout_s": 1.0})
    with pytest.raises(TransportError, match=r"(?i)authorization"):
        await connect(settings, "x")


@pytest.mark.parametrize(
    "wrong", [{"tls_ca_file": "nope.pem"}, {"password_file": "nope.txt"}, {"servers": ["nats://host:port"]}], ids=str
)
async def test_settings_that_cannot_work_are_an_error_that_names_them(
    broker: Broker, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    wrong = {k: tmp_path / v if k.endswith("_file") else v for k, v in wrong.items()}
    with pytest.raises(TransportError, match=r"nope|host:port"):
        await connect(broker.settings.model_copy(update=wrong), "x")


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """A CA and a certificate of 127.0.0.1, by the openssl program."""
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=test"
        " -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
    )
    try:
        subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("needs the openssl program")
    return tmp_path


@pytest.fixture
async def tls_broker(certificates: Path) -> AsyncIterator[Broker]:
    more = f'tls {{ cert_file: "{certificates}/cert.pem", key_file: "{certificates}/key.pem" }}'
    server = Broker(certificates, more=more)
    await server.start()
    yield server
    server.kill()


async def test_tls_carries_everything_and_survives_a_restart(tls_broker: Broker, certificates: Path) -> None:
    settings = BrokerSettings(servers=[tls_broker.url], tls_ca_file=certificates / "cert.pem", connect_timeout_s=20)
    transport = await connect(settings, "x")
    got = Inbox()
    await transport.subscribe("x", lambda s, r, p: got.append(p))
    transport.publish("x", bytes(900_000))
    await got.has(1)
    await tls_broker.restart()
    await until(lambda: transport.num_reconnects == 1 and transport.is_connected)
    transport.publish("x", b"again")
    await got.has(2)
    assert [len(p) for p in got] == [900_000, 5]
    await transport.close()


async def test_a_broker_whose_certificate_nobody_knows_is_refused(tls_broker: Broker) -> None:
    settings = BrokerSettings(servers=[f"tls://127.0.0.1:{tls_broker.port}"], connect_timeout_s=1.5)
    with pytest.raises(TransportError, match=r"(?i)certificate"):
        await connect(settings, "x")


async def test_no_password_is_sent_to_a_broker_without_tls_when_tls_is_configured(
    broker: Broker, certificates: Path
) -> None:
    settings = BrokerSettings(servers=[broker.url], tls_ca_file=certificates / "cert.pem", connect_timeout_s=1.0)
    with pytest.raises(TransportError, match="TLS"):
        await connect(settings, "x")


async def test_a_forbidden_subject_costs_the_message_not_the_connection(tmp_path: Path) -> None:
    users = '{user: "gw", password: "p", permissions: {publish: {deny: "secret.>"}}}'
    server = Broker(tmp_path, more=f"authorization {{ users: [{users}] }}")
    await server.start()
    transport = await connect(with_user(server, tmp_path, "p"), "x")
    got = Inbox()
    await transport.subscribe(">", lambda s, r, p: got.append(s))
    transport.publish("secret.x", b"")
    transport.publish("open", b"")
    await until(lambda: "open" in got)
    assert "secret.x" not in got
    assert transport.num_reconnects == 0
    await transport.close()
    server.kill()


async def _everything(broker: Broker) -> None:
    await broker.start()
    a, b = await connect(broker.settings, "a"), await connect(broker.settings, "b")
    await a.ensure_stream(ONLINE)
    await a.ensure_stream(blob_stream(BrokerLimits(blob_max_bytes=64 * 1024 * 1024)))
    take = Taker(settles=True)
    await b.open_lane(LANE, b.row_window(64), take)
    got = Inbox()
    for n in range(2000):
        a.publish_stored(LANE.subject, b"%d" % n, got.append)
    await take.has(2000)
    ref = await a.put_blob("x", [bytes(5_000_000)])
    assert len(await b.get_blob(ref)) == 5_000_000
    await broker.restart()
    await until(lambda: a.is_connected and b.is_connected)
    with pytest.raises(StreamGone):
        await a.get_blob(ref)
    await a.ensure_stream(ONLINE)
    await a.put_message(LANE.subject, b"1 again")
    await take.has(2001)
    await a.close()
    await b.close()


def test_all_of_it_runs_under_uvloop(tmp_path: Path) -> None:
    broker = Broker(tmp_path)
    try:
        uvloop.run(_everything(broker))
    finally:
        broker.kill()


def test_tls_runs_under_uvloop(certificates: Path) -> None:
    more = f'tls {{ cert_file: "{certificates}/cert.pem", key_file: "{certificates}/key.pem" }}'
    broker = Broker(certificates, more=more)

    async def run() -> None:
        await broker.start()
        await test_tls_carries_everything_and_survives_a_restart(broker, certificates)

    try:
        uvloop.run(run())
    finally:
        broker.kill()
