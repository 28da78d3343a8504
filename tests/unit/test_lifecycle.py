"""What a change in a model's folder means for what serves: decided without a disk, and seen on one."""

import os
from pathlib import Path

import pytest

from contract.errors import InvalidInput
from contract.model_config import ModelConfig
from workers.repository.footprint import Footprint, take_footprint
from workers.repository.lifecycle import Change, Loaded, find_change, may_take_over
from workers.repository.read import read_model
from workers.repository.scan import ModelEntry
from workers.repository.uploads import Uploads

CONFIG = ModelConfig("m", "double")
ONE, TWO = (("1/f", 1, 1, 1),), (("2/f", 1, 1, 2),)
LOADED = Loaded(ModelEntry("m", Path("m"), CONFIG, {"a": 1}, ("2", "1")), (), {"2": TWO, "1": ONE})
BOTH = Footprint(versions={"1": ONE, "2": TWO})


def _entry(config: ModelConfig | None = CONFIG, versions: tuple[str, ...] = ("2", "1"), **triton: object) -> ModelEntry:
    return ModelEntry("m", Path("m"), config, {"a": 1, **triton}, versions)


def test_nothing_changes_when_the_folder_has_not() -> None:
    assert find_change(LOADED, _entry(), BOTH) == Change()


def test_a_version_with_other_files_is_stale_and_its_neighbour_is_not() -> None:
    touched = Footprint(versions={"1": (("1/f", 1, 9, 1),), "2": TWO})
    assert find_change(LOADED, _entry(), touched) == Change(stale=frozenset({"1"}))


def test_a_version_without_a_folder_is_gone() -> None:
    change = find_change(LOADED, _entry(versions=("2",)), Footprint(versions={"2": TWO}))
    assert change == Change(gone=frozenset({"1"}))


def test_a_version_that_is_only_not_wanted_is_not_gone() -> None:
    assert find_change(LOADED, _entry(versions=("2",)), BOTH) == Change()


@pytest.mark.parametrize(
    ("entry", "footprint"),
    [
        (_entry(ModelConfig("m", "double", max_batch_size=4)), BOTH),
        (_entry(b=2), BOTH),
        (_entry(), Footprint(shared=(("tokenizer.json", 1, 1, 1),), versions=BOTH.versions)),
    ],
    ids=["config", "triton", "shared file"],
)
def test_what_all_versions_share_replaces_all_of_them(entry: ModelEntry, footprint: Footprint) -> None:
    assert find_change(LOADED, entry, footprint).is_replaced


def test_a_changed_policy_or_comment_loads_nothing_anew() -> None:
    commented = Footprint(config=(("config.pbtxt", 9, 9, 9),), versions=BOTH.versions)
    assert find_change(LOADED, _entry(version_policy={"all": {}}), commented) == Change()


def test_a_folder_that_cannot_be_read_keeps_everything_but_what_is_gone() -> None:
    change = find_change(LOADED, _entry(None, ()), Footprint(versions={"2": TWO}))
    assert change == Change(is_kept=True, gone=frozenset({"1"}))


def test_a_forced_load_loads_what_has_not_changed() -> None:
    assert find_change(LOADED, _entry(), BOTH, is_forced=True).stale == {"1", "2"}


@pytest.mark.parametrize(
    ("serving", "wanted", "ready", "may"),
    [
        (("1",), ("2",), ("2",), True),
        (("1",), ("1",), (), False),
        (("2", "1"), ("2", "1"), ("2",), False),
        (("2", "1"), ("2",), ("2",), True),
        (("1",), ("2",), ("1",), True),
    ],
)
def test_a_successor_takes_over_when_it_hurts_nobody(serving, wanted, ready, may) -> None:
    assert may_take_over(serving, wanted, ready) is may


# ------------------------------------------------------------------ footprints


def test_a_footprint_tells_config_shared_files_and_versions_apart(tmp_path: Path) -> None:
    model = tmp_path / "m"
    for path in ("config.pbtxt", "labels.txt", "1/model.onnx", "1/__pycache__/x.pyc", "2/sub/w.bin", ".hidden/x"):
        (model / path).parent.mkdir(parents=True, exist_ok=True)
        (model / path).write_text(path)
    found = take_footprint(model)
    assert found is not None
    names = {v: [p[0] for p in prints] for v, prints in found.versions.items()}
    assert names == {"1": ["1/model.onnx"], "2": ["2/sub/w.bin"]}
    assert [p[0] for p in found.config] == ["config.pbtxt"]
    assert [p[0] for p in found.shared] == ["labels.txt"]


def test_a_footprint_follows_links_sees_edits_and_ends_at_loops(tmp_path: Path) -> None:
    model, real = tmp_path / "m", tmp_path / "real"
    (model / "1").mkdir(parents=True)
    real.write_text("a")
    (model / "1" / "model.onnx").symlink_to(real)
    (model / "1" / "loop").symlink_to(model)
    before = take_footprint(model)
    real.write_text("b")
    os.utime(real, ns=(1, 1))
    assert take_footprint(model) != before
    assert take_footprint(tmp_path / "nowhere") is None


# ------------------------------------------------------------------ reading


def _write(model: Path, config: str, *versions: str) -> Path:
    model.mkdir()
    (model / "config.pbtxt").write_text(config)
    for version in versions:
        (model / version).mkdir()
        (model / version / "f").write_text("")
    return model


TENSORS = """
input [ { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


@pytest.mark.parametrize(
    ("policy", "versions", "fallbacks"),
    [
        ("", ("3",), ("2", "1")),
        ("version_policy { latest { num_versions: 2 } }", ("3", "2"), ("1",)),
        ("version_policy { all { } }", ("3", "2", "1"), ()),
        ("version_policy { specific { versions: [ 1 ] } }", ("1",), ()),
    ],
)
def test_only_latest_falls_back_on_older_versions(tmp_path: Path, policy, versions, fallbacks) -> None:
    entry = read_model(_write(tmp_path / "m", f'backend: "double"\n{TENSORS}{policy}', "1", "2", "3"))
    assert (entry.versions, entry.fallbacks) == (versions, fallbacks), entry.reason


def test_a_config_that_was_sent_stands_in_for_the_file(tmp_path: Path) -> None:
    model = _write(tmp_path / "m", f'backend: "double"\nmax_batch_size: 2\n{TENSORS}', "1")
    config = '{"backend": "double", "max_batch_size": 16, "input": [], "output": []}'
    entry = read_model(model, config)
    assert entry.config is not None
    assert entry.config.max_batch_size == 16
    assert "not JSON" in read_model(model, "{").reason
    assert "nonsense" in read_model(model, '{"nonsense": 1}').reason
    assert "not an object" in read_model(model, "[]").reason


# ------------------------------------------------------------------ uploads


@pytest.mark.parametrize(
    "path",
    ["../x", "/etc/passwd", "1/../../x", "", "1//x", "./x", "1/\0", "1\\x", "a/./b", "x" * 300, "1/\n", "\ud800"],
)
def test_a_file_outside_its_folder_is_refused_and_nothing_is_left(tmp_path: Path, monkeypatch, path: str) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InvalidInput):
        Uploads().write("m", {"1/good": b"", path: b"evil"})
    assert list(tmp_path.rglob("*")) == []


@pytest.mark.parametrize("model", ["..", "a/b", "", "\\"])
def test_a_model_name_that_is_no_folder_is_refused(model: str) -> None:
    with pytest.raises(InvalidInput):
        Uploads().write(model, {"1/f": b""})


@pytest.mark.parametrize("files", [{"1": b"", "1/f": b""}, {"1/f": b"", "1": b""}])
def test_files_that_contradict_each_other_are_refused(tmp_path: Path, monkeypatch, files) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(InvalidInput, match="stands where"):
        Uploads().write("m", files)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


def test_an_upload_is_private_and_goes_when_it_is_not_needed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    uploads = Uploads()
    first, second = uploads.write("m", {"1/a/f": b"x"}), uploads.write("m", {"1/a/f": b"y"})
    assert (first / "1/a/f").read_bytes() == b"x"
    assert first.name == second.name == "m"
    assert (first.parent.stat().st_mode & 0o077) == 0
    uploads.remove(tmp_path)
    uploads.remove(first)
    assert not first.exists()
    assert second.exists()
    uploads.clear()
    assert list(tmp_path.iterdir()) == []
