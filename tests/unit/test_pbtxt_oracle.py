"""The parser against protobuf's own verdict on 63 public files and 43 single-feature ones (tests/data/config_pbtxt)."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from contract.model_config import ModelConfig
from workers.repository import pbtxt
from workers.repository.convert import to_model_config
from workers.repository.refusal import ConfigRefused

DATA = Path(__file__).parents[1] / "data" / "config_pbtxt"
SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")


def oracle(path: Path) -> list[tuple[str, str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [(row[0], row[1], row[2]) for row in rows[1:]]


PUBLIC = oracle(DATA / "ORACLE.tsv")
STYLES = oracle(DATA / "styles" / "ORACLE.tsv")


def read(path: Path) -> pbtxt.TritonConfig:
    return pbtxt.parse(pbtxt.decode(path.read_bytes(), path.name), path.name)


def summary(config: pbtxt.TritonConfig) -> str:
    scheduler = next((name for name in SCHEDULERS if name in config), None)
    sides = f"in={len(config.get('input', []))} out={len(config.get('output', []))}"
    return f"name={config.get('name', '')!r} mbs={config.get('max_batch_size', 0)} {sides} sched={scheduler}"


def test_the_oracles_cover_every_file_that_is_here() -> None:
    assert {row[0] for row in PUBLIC} == {path.name for path in DATA.glob("*.pbtxt")}
    assert {row[0] for row in STYLES} == {path.stem for path in (DATA / "styles").glob("*.pbtxt")}
    assert (len(PUBLIC), len(STYLES)) == (63, 43)


@pytest.mark.parametrize(("name", "verdict", "detail"), PUBLIC, ids=[row[0] for row in PUBLIC])
def test_a_public_file_is_read_as_protobuf_reads_it(name: str, verdict: str, detail: str) -> None:
    if verdict == "OK":
        assert summary(read(DATA / name)) == detail
    else:
        assert_refused_at(DATA / name, detail)


@pytest.mark.parametrize(("name", "verdict", "detail"), STYLES, ids=[row[0] for row in STYLES])
def test_a_style_is_read_as_protobuf_reads_it(name: str, verdict: str, detail: str) -> None:
    path = DATA / "styles" / f"{name}.pbtxt"
    if verdict == "OK":
        # The oracle cuts long lines.
        message = json_format.ParseDict(dict(read(path)), model_config_pb2.ModelConfig())
        assert text_format.MessageToString(message, as_one_line=True, as_utf8=True).strip()[: len(detail)] == detail
    else:
        assert_refused_at(path, detail)


@pytest.mark.parametrize(
    ("path"),
    [DATA / row[0] for row in PUBLIC if row[1] == "OK"]
    + [DATA / "styles" / f"{row[0]}.pbtxt" for row in STYLES if row[1] == "OK"],
    ids=lambda path: path.stem,
)
def test_a_legal_file_becomes_a_config_or_is_refused_by_a_field_and_its_value(path: Path) -> None:
    triton = read(path)
    try:
        config = to_model_config(triton, triton.get("name", "m"))
    except ConfigRefused as error:
        text = str(error)
        assert any(field in text for field in triton) or "dims" in text or "backend" in text
        assert "Traceback" not in text
        assert len(text) < 500
    else:
        assert isinstance(config, ModelConfig)
        assert [spec.name for spec in config.inputs] == [tensor["name"] for tensor in triton.get("input", [])]
        assert config.max_batch_size == triton.get("max_batch_size", 0)


def assert_refused_at(path: Path, detail: str) -> None:
    where, _, message = detail.partition(" : ")
    with pytest.raises(ConfigRefused) as refused:
        read(path)
    text = str(refused.value)
    assert text.startswith(f"{path.name}:{where}: ")
    offending = message.partition("': ")[0].removeprefix("'").strip()
    assert offending in text
    assert message.rpartition("': ")[2].rstrip(".") in text
    assert ("comments start with #" in text) == offending.startswith("//")
