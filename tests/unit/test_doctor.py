import shutil
import socket
from pathlib import Path

import pytest

from contract.streams import MIB
from headrace.config.load import load
from headrace.doctor import (
    Finding,
    clock_finding,
    diagnose,
    disk_findings,
    jetstream_finding,
    memory_finding,
    network_finding,
    port_findings,
    print_findings,
    python_finding,
)

REPOSITORY = Path(__file__).parents[1] / "models"


def test_an_old_python_is_bad_and_told_what_to_install() -> None:
    finding = python_finding((3, 9))
    assert finding.state == "bad"
    assert "install Python 3.11" in finding.text
    assert python_finding((3, 13)).state == "good"


def test_a_taken_port_names_its_holder() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        fixed = load(sets=[f"gateway.http_port={port}", "up.is_port_fixed=true"], environment={}).settings
        moving = load(sets=[f"gateway.http_port={port}"], environment={}).settings
        assert port_findings(fixed)[0].state == "bad"
        assert "(pid " in port_findings(fixed)[0].text
        assert port_findings(moving)[0].state == "note"


def test_a_full_disk_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("U", (), {"free": 10 * MIB})())
    (finding,) = disk_findings(tmp_path / "not" / "there")
    assert finding.state == "bad"
    assert "make room" in finding.text


def test_an_unreachable_registry_says_what_to_do() -> None:
    finding = network_finding("127.0.0.1", 1)
    assert finding.state == "bad"
    assert "proxy" in finding.text


def test_reservations_over_the_limit_are_bad() -> None:
    assert memory_finding(100 * MIB, 200 * MIB, "the broker allows").state == "bad"
    assert memory_finding(200 * MIB, 100 * MIB, "the broker allows").state == "good"


def test_jetstream_limits_are_read_from_its_answer() -> None:
    answer = {"reserved_memory": 648 * MIB, "limits": {"max_memory": 600 * MIB}}
    assert jetstream_finding(answer, None, 0).state == "bad"
    assert jetstream_finding({"limits": {"max_memory": -1}}, None, 1).state == "note"
    assert jetstream_finding({"error": {"description": "not enabled"}}, None, 1).state == "bad"


@pytest.mark.parametrize(("offset_s", "state"), [(0.004, "good"), (-0.5, "bad"), (0.03, "bad")])
def test_a_clock_that_is_off_is_bad(offset_s: float, state: str) -> None:
    assert clock_finding(offset_s).state == state


def test_a_broken_configuration_is_a_line_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "h.yaml"
    file.write_text("gateway:\n  htp_port: 1\n")
    bad = [f for f in diagnose(file, [], None) if f.state == "bad"]
    assert [f.text.split(": ")[0] for f in bad] == [f"{file}:2"]


def test_a_missing_repository_is_told_how_to_make_one(tmp_path: Path) -> None:
    sets = ["broker.servers=nats://127.0.0.1:1"]
    bad = [f for f in diagnose(None, sets, tmp_path / "none") if f.state == "bad"]
    assert [f.what for f in bad] == ["models"]
    assert "make models" in bad[0].text


def test_a_broken_model_config_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "onnxruntime"\nmax_bach_size: 4\n')
    bad = [f for f in diagnose(None, ["broker.servers=nats://127.0.0.1:1"], tmp_path) if f.state == "bad"]
    assert len(bad) == 1
    assert "max_bach_size" in bad[0].text
    assert ":2" in bad[0].text


def test_a_tokenizer_that_is_not_there_is_a_line(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "embed8", tmp_path / "embed8")
    sets = ["broker.servers=nats://127.0.0.1:1"]
    assert [f for f in diagnose(None, sets, tmp_path) if f.what == "model" and f.state == "bad"] == []
    (tmp_path / "embed8" / "tokenizer.json").unlink()
    (bad,) = [f for f in diagnose(None, sets, tmp_path) if f.what == "model" and f.state == "bad"]
    assert "'tokenizer.json'" in bad.text


def test_a_model_that_is_asked_for_and_not_there_is_a_line(tmp_path: Path) -> None:
    sets = ["broker.servers=nats://127.0.0.1:1", "worker.models=toxicty"]
    (tmp_path / "toxicity" / "1").mkdir(parents=True)
    (bad,) = [f for f in diagnose(None, sets, tmp_path) if f.state == "bad"]
    assert bad.text.startswith("model 'toxicty' is not in ")
    assert bad.text.endswith("which holds toxicity")


def test_what_is_passed_over_in_a_repository_is_noted(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "add_sub", tmp_path / "add_sub")
    (tmp_path / "add_sub" / "v2").mkdir()
    (tmp_path / "docs").mkdir()
    found = diagnose(None, ["broker.servers=nats://127.0.0.1:1"], tmp_path)
    notes = [f.text for f in found if f.state == "note" and f.what.startswith("model")]
    assert notes[0] == "docs/ is ignored: it holds neither config.pbtxt nor a version folder"
    assert notes[1].startswith("add_sub: ")
    assert "v2" in notes[1]


def test_only_bad_findings_make_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_findings([Finding("good", "a", "x"), Finding("note", "b", "y")]) == 0
    assert print_findings([Finding("bad", "c", "z")]) == 1
    assert capsys.readouterr().out.splitlines() == ["good  a          x", "note  b          y", "bad   c          z"]
