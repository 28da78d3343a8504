"""compose.yaml, the Dockerfile and what they mount agree with each other and with the settings. Starts nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from headrace.broker import find_binary, reserved_bytes
from headrace.config.environment import parse_environment
from headrace.config.resolve import resolve
from headrace.config.settings import HeadraceSettings
from tests.support.compose import FILE, ROOT, read_compose, source_of
from tests.support.dockerfile import read_stages
from transport.settings import BrokerSettings

COMPOSE = read_compose()
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = ROOT / "deploy/Dockerfile"
STAGES = read_stages(DOCKERFILE)
TARGETS = ("gateway", "worker-cpu", "worker-gpu")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def settings_of(name: str) -> HeadraceSettings:
    return resolve([parse_environment(SERVICES[name].get("environment", {}))]).settings


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def test_the_file_has_the_parts_of_a_whole_service() -> None:
    assert set(SERVICES) == {"nats", "gateway", "worker", "worker-gpu", "valkey", "prometheus"}
    assert {name for name, service in SERVICES.items() if "profiles" not in service} == {
        *("nats", "gateway", "worker", "prometheus")
    }


def test_a_key_that_compose_does_not_know_is_found() -> None:
    wrong = json.loads(json.dumps(COMPOSE))
    wrong["services"]["gateway"]["memory"] = "3G"
    with pytest.raises(ValueError, match="memory"):
        PyCompose.from_json(json.dumps(wrong)).validate()


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_confined_and_has_limits(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    limits = service["deploy"]["resources"]["limits"]
    assert set(limits) == {"cpus", "memory", "pids"}
    assert "healthcheck" in service or STAGES[service["build"]["target"]].health_command
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:"), "published to this host only"


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_waits_for_the_health_of_what_it_needs(name: str) -> None:
    needs = {"gateway": "nats", "worker": "nats", "worker-gpu": "nats", "prometheus": "gateway"}
    expected = {needs[name]: {"condition": "service_healthy"}} if name in needs else {}
    assert SERVICES[name].get("depends_on", {}) == expected


def test_what_is_mounted_exists_and_every_secret_is_a_file() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source, _, _ = source_of(volume)
            assert source in COMPOSE["volumes"] or Path(source).exists(), source
        assert set(service.get("secrets", [])) <= set(COMPOSE["secrets"])
    assert COMPOSE["secrets"]["tenants"]["file"] == "./configs/examples/tenants.yaml"
    made = COMPOSE["secrets"]["broker_password"]["file"].removeprefix("./")
    assert made in FILE.read_text().partition("x-service")[0], "the comment says how to make it"
    ignored = subprocess.run(["git", "check-ignore", made], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ignored.stdout.strip() == made, "a password must not be committed"


@pytest.mark.parametrize("name", ["worker", "worker-gpu"])
def test_workers_follow_their_repository_and_only_read_it(name: str) -> None:
    assert settings_of(name).worker.model_control_mode == "poll"
    assert SERVICES[name]["volumes"] == ["./model_repository:/models:ro"]


@pytest.mark.parametrize("name", ["gateway", "worker", "worker-gpu"])
def test_the_environment_gives_settings_that_exist(name: str) -> None:
    settings = settings_of(name)
    broker = settings.gateway.broker
    assert broker.servers == ["nats://nats:4222"]
    assert str(broker.password_file) == "/run/secrets/broker_password"
    conf = (ROOT / "deploy/nats-server.conf").read_text()
    assert f"user: {broker.user}," in conf
    assert "port: 4222" in conf


def test_services_end_by_themselves_before_they_are_killed() -> None:
    defaults = HeadraceSettings()
    assert seconds(SERVICES["gateway"]["stop_grace_period"]) > defaults.gateway.drain_timeout_s
    assert seconds(SERVICES["worker"]["stop_grace_period"]) > defaults.worker.drain_timeout_s


def test_the_gateways_memory_holds_what_it_may_accept() -> None:
    limit = SERVICES["gateway"]["deploy"]["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("G")) * 2**30 > 2 * HeadraceSettings().gateway.max_held_bytes


def test_the_brokers_memory_holds_the_streams() -> None:
    limit = SERVICES["nats"]["deploy"]["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("G")) * 2**30 > 10**9 > reserved_bytes(BrokerSettings())


@pytest.mark.parametrize("password", ["'secret'", "'0123456789'", None])
def test_the_brokers_configuration_is_one_and_wants_a_password(password: str | None) -> None:
    environment = {"PATH": os.environ["PATH"], **({"NATS_PASSWORD": password} if password else {})}
    command = [find_binary(), "-t", "--config", ROOT / "deploy/nats-server.conf"]
    tried = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (tried.returncode == 0) is (password is not None), tried.stderr
    if password is None:
        assert "NATS_PASSWORD" in tried.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_nobody_with_a_health_check_and_a_command_that_exists(target: str) -> None:
    stage = STAGES[target]
    assert stage.last("USER") == "10001:10001"
    assert json.loads(stage.last("ENTRYPOINT")) == ["headrace"]
    assert "headrace" in PROJECT["scripts"]
    role = target.partition("-")[0]
    assert json.loads(stage.last("CMD")) == [role]
    assert stage.health_command == ["headrace", "health", role]
    resolve([parse_environment({k: v for k, v in stage.environment.items() if k.startswith("HEADRACE_")})])
    if role == "worker":
        assert stage.last("VOLUME") == stage.environment["HEADRACE_WORKER__MODEL_REPOSITORY"] == "/models"
        assert not any("model_repository" in line for line in stage.all("COPY"))


def test_the_image_exposes_the_ports_of_the_settings() -> None:
    defaults = HeadraceSettings().gateway
    assert STAGES["gateway"].last("EXPOSE").split() == [str(defaults.http_port), str(defaults.metrics_port)]


@pytest.mark.parametrize("target", TARGETS)
def test_an_image_is_built_from_files_of_the_repository_and_extras_that_exist(target: str) -> None:
    build = STAGES[f"build-{target}"]
    ignore = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = [path for line in build.all("COPY") for path in line.split()[:-1]]
    assert {line[1:] for line in ignore} == set(copied)
    assert all((ROOT / path).exists() for path in copied)
    packages = {pattern.rstrip("*") for pattern in ("contract", "transport", "gateway", "workers", "headrace")}
    assert packages <= set(copied)
    (install,) = [line for line in build.all("RUN") if "pip install" in line]
    (extra,) = re.findall(r'"\.\[([\w-]+)\]"', install)
    assert extra == {"worker-cpu": "worker"}.get(target, target)
    assert extra in PROJECT["optional-dependencies"]
    assert "--constraint requirements/runtime.lock" in install


def test_every_stage_starts_from_one_before_it_or_from_an_image() -> None:
    names = list(STAGES)
    for at, (name, stage) in enumerate(STAGES.items()):
        assert stage.base in names[:at] or ":" in stage.base, name
        for line in stage.all("COPY"):
            if found := re.match(r"--from=(\S+) (\S+)", line):
                assert found[1] in names[:at]
                assert any(found[2] in run for run in STAGES[found[1]].all("RUN"))


def test_compose_builds_targets_that_exist() -> None:
    built = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert built == set(TARGETS)


def test_prometheus_scrapes_the_metrics_port_and_reads_the_rules_that_are_mounted() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (scrape,) = config["scrape_configs"]
    (found,) = scrape["dns_sd_configs"]
    assert found["names"] == ["gateway"]
    assert found["port"] == HeadraceSettings().gateway.metrics_port
    targets = {source_of(volume)[1] for volume in SERVICES["prometheus"]["volumes"]}
    assert set(config["rule_files"]) <= targets
    assert set(SERVICES["prometheus"]["networks"]) & set(SERVICES["gateway"]["networks"])


def test_nothing_secret_gets_into_an_image() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*", "everything is left out but what is named"
    assert not any(fnmatch("deploy/secrets", line[1:]) for line in lines if line.startswith("!"))
