import contextlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest

from contract.errors import HeadraceError, InvalidInput, NotFound
from headrace.launcher import Launcher
from headrace.oip import Result
from headrace.runfile import read_note
from tests.support.running import FIXTURES, STOP_WITHIN_S, Running, headrace_up

ONLY_ADD_SUB = ("--set", "worker.models=add_sub")
ONLY_SLOW = ("--set", "worker.models=slow_500")
X = np.arange(16, dtype=np.float32)[None]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with headrace_up(tmp_path_factory.mktemp("up"), FIXTURES, *ONLY_ADD_SUB) as up:
        yield up


def cli(running: Running, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command in the folder the launcher was started from; it finds the launcher by its note."""
    command = [sys.executable, "-m", "headrace", *arguments]
    environment = {"HEADRACE_UP__DATA_DIR": "data", "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, cwd=running.data_dir.parent, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def gone(processes: list[psutil.Process]) -> bool:
    """Whether all have ended within a generous time; zombies nobody waits for count as ended."""
    end_s = time.monotonic() + STOP_WITHIN_S
    left = processes
    while left and time.monotonic() < end_s:
        _, left = psutil.wait_procs(left, timeout=0.5)
        left = [p for p in left if _lives(p)]
    return not left


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def test_each_step_is_said_with_its_time(running: Running) -> None:
    lines = running.output.splitlines()
    steps = [line.split()[2] for line in lines if " s  " in line]
    assert steps == ["broker", "gateway", "model"] or steps == ["broker", "model", "gateway"]
    assert "\x1b" not in running.output


def test_the_client_gets_arrays_for_arrays(running: Running) -> None:
    with running.client() as client:
        result = client.infer("add_sub", INPUT0=X, INPUT1=X)
    assert np.array_equal(result.outputs["OUTPUT0"], X + X)
    assert result.outputs["OUTPUT1"].tolist() == [[0.0] * 16]
    assert result.version == "1"


def test_the_client_raises_the_error_that_the_code_names(running: Running) -> None:
    with running.client() as client:
        with pytest.raises(NotFound):
            client.infer("nobody", x=[1])
        with pytest.raises(InvalidInput, match="INPUT9"):
            client.infer("add_sub", INPUT9=X)
        with pytest.raises(InvalidInput):
            client.infer("add_sub", INPUT0=np.zeros((1, 3), np.float32), INPUT1=X)
        assert client.is_ready()
        assert client.is_ready("add_sub")
        assert not client.is_ready("nobody")


@pytest.mark.parametrize("over", [(), ("--nats",)], ids=["http", "nats"])
def test_infer_finds_the_running_launcher(running: Running, over: tuple[str, ...]) -> None:
    values = str([1.0] * 16)
    nats = (*over, running.broker_url) if over else ()
    answer = cli(running, "infer", "add_sub", "--input", f"INPUT0={values}", "--input", f"INPUT1={values}", *nats)
    assert answer.stdout.splitlines() == [
        f"OUTPUT0  [{', '.join(['2.0'] * 8)}, … (16 values)]",
        f"OUTPUT1  [{', '.join(['0.0'] * 8)}, … (16 values)]",
    ], answer.stderr


@pytest.mark.parametrize("over", [(), ("--nats",)], ids=["http", "nats"])
def test_infer_of_an_unknown_model_is_not_found_and_lists_the_known(running: Running, over: tuple[str, ...]) -> None:
    answer = cli(running, "infer", "nobody", "--text", "x", *((*over, running.broker_url) if over else ()))
    assert answer.returncode == 1
    assert answer.stderr.startswith("not-found: ")
    assert answer.stderr.endswith("; known: add_sub\n")
    assert len(answer.stderr.splitlines()) == 1


def test_models_lists_name_version_and_state(running: Running) -> None:
    listed = cli(running, "models")
    (row,) = [line for line in listed.stdout.splitlines() if "add_sub" in line]
    assert row.split()[:5] == ["default", "add_sub", "1", "READY", "onnxruntime"]


def test_status_shows_gateway_worker_queues_and_instances(running: Running) -> None:
    shown = cli(running, "status")
    assert shown.returncode == 0, shown.stderr
    tables = [table.splitlines() for table in shown.stdout.strip().split("\n\n")]
    assert [table[0].split()[0] for table in tables] == ["gateway", "worker", "group", "worker"]
    assert len(tables[0]) == 2
    assert str(running.workers()[0].pid) in tables[1][1].split()
    assert {line.split()[3] for line in tables[2][1:]} == {"hi", "norm"}
    assert tables[3][1].split()[1:3] == ["add_sub", "1"]


def test_doctor_finds_nothing_bad_while_it_runs(running: Running) -> None:
    found = cli(running, "doctor", str(FIXTURES / "add_sub" / ".."), "--set", "worker.models=add_sub")
    assert found.returncode == 0, found.stdout + found.stderr
    assert f"{running.broker_url} answers" in found.stdout
    assert "ms from this machine's" in found.stdout


def test_a_second_launcher_on_the_same_folder_is_refused_and_harms_nobody(running: Running) -> None:
    refused = cli(running, "up", str(FIXTURES), "--data-dir", "data", *ONLY_ADD_SUB)
    assert refused.returncode == 1
    assert f"(pid {running.process.pid}" in refused.stdout
    assert "none of its processes is left" in refused.stdout, "the other one's are"
    with running.client() as client:
        assert client.is_ready("add_sub")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_stops_everything_in_order(number: signal.Signals, tmp_path: Path) -> None:
    with headrace_up(tmp_path, FIXTURES, *ONLY_ADD_SUB) as up:
        family = up.processes()
        assert len(family) >= 5  # launcher, broker, gateway, pool, worker
        assert up.stop(number) == 0
        assert gone(family)
        assert not (up.data_dir / "run.json").exists()
        assert "none of its processes is left" in up.output


def ask_slowly(up: Running, count: int, pool: ThreadPoolExecutor) -> list[Future[Result]]:
    """Requests that fill a micro-batch of half a second each; returns once the gateway has them all."""
    rows = np.zeros((8, 1), np.float32)

    def ask() -> Result:
        with up.client() as client:
            return client.infer("slow_500", INPUT0=rows)

    asked = [pool.submit(ask) for _ in range(count)]
    wait_until(lambda: f"headrace_open_requests {count}.0" in metrics(up))
    return asked


def metrics(up: Running) -> str:
    with urllib.request.urlopen(up.note.metrics_url, timeout=10) as answer:
        return str(answer.read().decode())


def wait_until(is_so: Callable[[], bool], within_s: float = 30.0) -> None:
    end_s = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_what_was_accepted_is_answered_before_the_end(tmp_path: Path) -> None:
    with headrace_up(tmp_path, FIXTURES, *ONLY_SLOW) as up, ThreadPoolExecutor(4) as pool:
        asked = ask_slowly(up, 4, pool)
        assert up.stop() == 0
        assert [int(a.result(0.1).outputs["ROWS"].max()) for a in asked] == [8] * 4


def test_a_second_ctrl_c_does_not_wait_for_what_was_accepted(tmp_path: Path) -> None:
    with headrace_up(tmp_path, FIXTURES, *ONLY_SLOW) as up, ThreadPoolExecutor(40) as pool:
        family = up.processes()
        asked = ask_slowly(up, 40, pool)  # twenty seconds of work
        up.process.send_signal(signal.SIGINT)
        wait_until(lambda: "finishing what was accepted" in up.output)
        started_s = time.monotonic()
        up.stop(signal.SIGINT)
        assert time.monotonic() - started_s < 10
        assert gone(family)
        assert any(a.exception(10) is not None for a in asked)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda n: n.name)
def test_an_end_in_the_middle_of_the_start_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace", "up", str(FIXTURES), "--data-dir", "data", *ONLY_ADD_SUB]
    command += ["--http-port", "0", "--metrics-port", "0", "--broker-port", "0"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        assert "nats-server on" in process.stdout.readline()
        launcher = psutil.Process(process.pid)
        wait_until(lambda: len(launcher.children()) == 3)
        family = launcher.children(recursive=True)
        process.send_signal(number)
        rest = process.stdout.read()
        assert process.wait(STOP_WITHIN_S) == (-9 if number == signal.SIGKILL else 0), rest
    assert gone(family)
    assert "Try it" not in rest


def test_kill_9_of_the_launcher_leaves_no_process(tmp_path: Path) -> None:
    with headrace_up(tmp_path, FIXTURES, *ONLY_ADD_SUB) as up:
        family = up.processes()
        up.stop(signal.SIGKILL)
        assert gone(family)


PARTS = {"gateway.app": "gateway", "workers.pool": "workers", "nats-server": "broker"}


def revive(up: Running, needle: str) -> None:
    """Kill a part and wait until the launcher has another; the note names it."""
    before = up.part(needle)
    before.kill()
    wait_until(lambda: (note := read_note(up.data_dir)) is not None and note.pids[PARTS[needle]] != before.pid)
    note = read_note(up.data_dir)
    assert note is not None
    assert f"{PARTS[needle]:<8} died with signal 9, started again as pid {note.pids[PARTS[needle]]}" in up.output
    assert (note.http_url, note.metrics_url, note.broker_url) == (
        up.note.http_url,
        up.note.metrics_url,
        up.note.broker_url,
    )


def answers(up: Running) -> bool:
    with contextlib.suppress(HeadraceError), up.client(5.0) as client:
        return np.array_equal(client.infer("add_sub", INPUT0=X, INPUT1=X).outputs["OUTPUT0"], X + X)
    return False


@pytest.mark.parametrize("needle", PARTS)
def test_a_part_that_is_killed_is_started_again_and_requests_are_answered(needle: str, tmp_path: Path) -> None:
    with headrace_up(tmp_path, FIXTURES, *ONLY_ADD_SUB) as up:
        revive(up, needle)
        wait_until(lambda: answers(up))
        family = up.processes()
        assert up.stop() == 0
        assert gone(family)


def test_a_part_that_dies_again_and_again_ends_all(tmp_path: Path) -> None:
    with headrace_up(tmp_path, FIXTURES, *ONLY_ADD_SUB) as up:
        for _ in range(4):
            revive(up, "gateway.app")
        family = up.processes()
        up.part("gateway.app").kill()
        assert up.process.wait(STOP_WITHIN_S) == 1
        assert gone(family)
        assert "gateway died with signal 9, 5 times within 60 s" in up.output


def test_a_taken_port_is_said_and_another_used(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        with headrace_up(tmp_path, FIXTURES, *ONLY_ADD_SUB, "--http-port", str(port)) as up:
            assert f"{port} is taken, HTTP uses " in up.output
            assert not up.http_url.endswith(f":{port}")
            with up.client() as client:
                assert client.is_ready()


def test_a_model_that_cannot_load_ends_up_with_its_reason(tmp_path: Path) -> None:
    (tmp_path / "repo" / "broken" / "1").mkdir(parents=True)
    (tmp_path / "repo" / "broken" / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_bach_size: 4\n')
    command = [sys.executable, "-m", "headrace", "up", "repo", "--data-dir", "data", "--broker-port", "0"]
    command += ["--http-port", "0", "--metrics-port", "0"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 1
    assert "no model could be loaded" in ended.stdout
    assert "max_bach_size" in ended.stdout
    assert Launcher.__name__ not in ended.stderr, "a traceback"
