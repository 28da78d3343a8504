import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import __version__
from headrace.client import Client

ROOT = Path(__file__).parents[2]
NOT_FOR_VERSION = ("numpy", "nats", "uvloop", "yaml", "asyncio", "onnxruntime", "starlette")


def headrace(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace", *arguments]
    env = {k: v for k, v in os.environ.items() if not k.startswith("HEADRACE_")} | environment
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60, check=False)


def test_version_says_the_version() -> None:
    assert headrace("version").stdout == f"headrace {__version__}\n"


def test_version_is_an_option_too() -> None:
    assert headrace("--version").stdout == f"headrace {__version__}\n"


def test_version_imports_nothing_heavy() -> None:
    code = "import sys; from headrace.cli import app; app(['version'], standalone_mode=False); print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert [m for m in NOT_FOR_VERSION if m in found.stdout.split()] == []


def test_config_show_tells_where_each_value_came_from(tmp_path: Path) -> None:
    (tmp_path / "h.yaml").write_text("gateway:\n  http_port: 1\n")
    shown = headrace(
        "config",
        "show",
        "--config",
        "h.yaml",
        "--set",
        "worker.num_processes=3",
        cwd=tmp_path,
        HEADRACE_UP__BROKER_PORT="7",
    )
    rows = {line.split()[0]: line.split()[1:] for line in shown.stdout.splitlines()}
    assert rows["gateway.http_port"] == ["1", "h.yaml:2"]
    assert rows["worker.num_processes"] == ["3", "--set", "worker.num_processes"]
    assert rows["up.broker_port"] == ["7", "HEADRACE_UP__BROKER_PORT"]
    assert rows["gateway.metrics_port"] == ["8002", "default"]
    assert "\x1b" not in shown.stdout


def test_config_check_accepts_the_example_and_refuses_a_typo(tmp_path: Path) -> None:
    assert headrace("config", "check", "configs/headrace.yaml").returncode == 0
    (tmp_path / "h.yaml").write_text("gateway:\n  htp_port: 1\n")
    refused = headrace("config", "check", "h.yaml", cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr == "h.yaml:2: unknown key gateway.htp_port, did you mean gateway.http_port?\n"


@pytest.mark.parametrize("command", ["up", "gateway", "worker", "status", "models", "doctor"])
def test_a_broken_configuration_stops_every_command(command: str, tmp_path: Path) -> None:
    refused = headrace(command, cwd=tmp_path, HEADRACE_GATEWAY__HTP_PORT="1")
    assert refused.returncode == 1
    assert "HEADRACE_GATEWAY__HTP_PORT: unknown key gateway.htp_port" in refused.stdout + refused.stderr
    assert "Traceback" not in refused.stderr


def test_up_without_a_repository_says_how_to_make_one(tmp_path: Path) -> None:
    refused = headrace("up", cwd=tmp_path)
    assert refused.returncode == 1
    assert "model repository model_repository does not exist" in refused.stdout
    assert "make models" in refused.stdout


def test_asking_where_nobody_listens_is_one_line(tmp_path: Path) -> None:
    refused = headrace("infer", "m", "--text", "x", "--url", "http://127.0.0.1:1", cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.startswith("unavailable: http://127.0.0.1:1: ")
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["status", "models"])
def test_status_without_a_broker_is_one_line(command: str, tmp_path: Path) -> None:
    refused = headrace(command, "--set", "broker.servers=nats://127.0.0.1:1", cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.startswith("no broker at nats://127.0.0.1:1 within 2 s: ")
    assert refused.stderr.endswith("; is `headrace up` running?\n")
    assert refused.stderr.count("no broker") == len(refused.stderr.splitlines()) == 1


def test_infer_without_a_broker_says_so_once(tmp_path: Path) -> None:
    refused = headrace("infer", "m", "--text", "x", "--nats", "nats://127.0.0.1:1", cwd=tmp_path)
    assert refused.stderr.startswith("unavailable: no broker at nats://127.0.0.1:1 within 2 s: ")


def test_the_client_tells_in_a_short_error_that_the_server_is_away() -> None:
    code = "from headrace.client import Client; Client('http://127.0.0.1:1').infer('m', x=[1])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    lines = ended.stderr.splitlines()
    assert lines[-1] == (
        "headrace.client.ServerAway: http://127.0.0.1:1: nobody listens there; is `headrace up` running?"
    )
    assert len(lines) <= 6
    with pytest.raises(ConnectionError):
        Client("http://127.0.0.1:1").metadata("m")


def test_doctor_names_what_is_missing(tmp_path: Path) -> None:
    found = headrace("doctor", "--set", "broker.servers=nats://127.0.0.1:1", cwd=tmp_path)
    assert found.returncode == 1
    (bad,) = [line for line in found.stdout.splitlines() if line.startswith("bad")]
    assert bad.startswith("bad   models     model_repository does not exist: run `make models`")
