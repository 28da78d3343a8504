"""Which folders are models, which versions serve, and what is said about the rest."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from contract.model_config import VersionState
from workers.repository.instances import instance_sources
from workers.repository.read import read_model, read_repository, repository_notes
from workers.repository.refusal import ConfigRefused
from workers.repository.scan import FoundVersions, Listed, ModelEntry, choose_versions, find_versions, guess_backend

FIXTURES = Path(__file__).parents[1] / "models"
CONFIG = (FIXTURES / "add_sub" / "config.pbtxt").read_text(encoding="utf-8")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model `m` with version 1, in a repository of its own."""
    folder = tmp_path / "repository" / "m"
    (folder / "1").mkdir(parents=True)
    shutil.copy(FIXTURES / "add_sub" / "1" / "model.onnx", folder / "1")
    (folder / "config.pbtxt").write_text(CONFIG, encoding="utf-8")
    return folder


def copy_version(model: Path, version: str) -> None:
    shutil.copytree(model / "1", model / version)


def test_stray_folders_files_and_empty_versions_leave_version_1_serving(model: Path) -> None:
    for name in ("model", ".git", "__pycache__", "1.bak", "v2", "tmp_2", "5", "01", "-1", "\u0663"):
        (model / name).mkdir()
    (model / "3").write_text("a file", encoding="utf-8")
    entry = read_model(model)
    assert entry.reason == ""
    assert entry.versions == ("1",)
    assert entry.unavailable == (VersionState("5", "UNAVAILABLE", "the version folder is empty"),)
    assert len(entry.notes) == len(set(entry.notes)) == 10
    assert any(note.startswith("3 is ignored: a version must be a folder") for note in entry.notes)
    assert any(note.startswith("1.bak/ is ignored") for note in entry.notes)


def test_a_symlinked_version_is_a_version(model: Path) -> None:
    (model / "4").symlink_to(model / "1", target_is_directory=True)
    (model / "6").symlink_to(model / "nowhere")
    assert read_model(model).versions == ("4",)


def test_reading_twice_gives_the_same_entry_while_nothing_changes(model: Path) -> None:
    assert read_model(model) == read_model(model)


def test_a_version_without_its_model_file_does_not_count(model: Path) -> None:
    (model / "2").mkdir()
    (model / "2" / "half-copied.tmp").touch()
    entry = read_model(model)
    assert entry.versions == ("1",)
    assert entry.unavailable == (VersionState("2", "UNAVAILABLE", "the version folder has no model.onnx"),)


@pytest.mark.parametrize(
    ("policy", "versions", "unavailable"),
    [
        ("", ("10",), ()),
        ("version_policy { latest { num_versions: 2 } }", ("10", "9"), ()),
        ("version_policy { latest { num_versions: 9 } }", ("10", "9", "1"), ()),
        ("version_policy { all { } }", ("10", "9", "1"), ()),
        ("version_policy { specific { versions: [ 1, 9, 7 ] } }", ("9", "1"), ("7",)),
    ],
)
def test_the_version_policy_chooses(model: Path, policy: str, versions: tuple, unavailable: tuple) -> None:
    copy_version(model, "9")
    copy_version(model, "10")
    (model / "config.pbtxt").write_text(f"{CONFIG}\n{policy}", encoding="utf-8")
    entry = read_model(model)
    assert entry.versions == versions
    assert tuple(state.version for state in entry.unavailable) == unavailable


@pytest.mark.parametrize(
    ("policy", "named"),
    [
        ({"latest": {"num_versions": 0}}, "num_versions = 0"),
        ({"specific": {"versions": [3]}}, "no version to load (3: version_policy.specific names it"),
        ({"specific": {}}, "no version to load"),
    ],
)
def test_a_policy_that_leaves_nothing_to_load_says_so(policy: dict, named: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        choose_versions({"version_policy": policy}, FoundVersions(("1",), (), ()))
    assert named in str(refused.value)


def test_a_model_without_any_version_is_an_entry_with_a_reason(model: Path) -> None:
    shutil.rmtree(model / "1")
    entry = read_model(model)
    assert entry.config is None
    assert entry.reason == "m/config.pbtxt: no version to load (the folder has no version folder such as 1/)"


def test_one_bad_config_does_not_hide_the_other_models(model: Path) -> None:
    bad = model.parent / "bad"
    shutil.copytree(model, bad)
    (bad / "config.pbtxt").write_text("max_batch_size: ${size}\n", encoding="utf-8")
    entries = {entry.name: entry for entry in read_repository(model.parent)}
    assert entries["m"].reason == ""
    assert entries["bad"].reason.startswith("bad/config.pbtxt:1:17: ")
    assert "${size}" in entries["bad"].reason


def test_a_refused_field_is_a_reason_that_names_file_field_and_value(model: Path) -> None:
    (model / "config.pbtxt").write_text(f"{CONFIG}\nresponse_cache {{ enable: true }}", encoding="utf-8")
    assert read_model(model).reason.startswith(
        'm/config.pbtxt:15:1: response_cache = {"enable": true} is not supported'
    )


def test_only_the_models_that_were_asked_for_are_read(model: Path) -> None:
    shutil.copytree(model, model.parent / "other")
    assert [entry.name for entry in read_repository(model.parent)] == ["m", "other"]
    assert [entry.name for entry in read_repository(model.parent, ["other"])] == ["other"]
    with pytest.raises(ConfigRefused, match=r"model 'thrid' is not in .* which holds m, other"):
        read_repository(model.parent, ["thrid"])


def test_what_is_no_model_is_left_out_and_only_the_puzzling_is_noted(model: Path) -> None:
    for name in (".git", "__pycache__", "docs"):
        (model.parent / name).mkdir()
    (model.parent / "README.md").touch()
    assert [entry.name for entry in read_repository(model.parent)] == ["m"]
    assert repository_notes(model.parent) == ["docs/ is ignored: it holds neither config.pbtxt nor a version folder"]


def test_a_repository_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match="is not a folder"):
        read_repository(tmp_path / "nowhere")


def test_a_name_that_no_subject_can_carry_is_a_reason(model: Path) -> None:
    long = model.rename(model.parent / ("x" * 129))
    assert "129 bytes" in read_model(long).reason


def test_an_onnx_model_needs_no_config_at_all(model: Path) -> None:
    (model / "config.pbtxt").unlink()
    entry = read_model(model)
    assert entry.config is not None, entry.reason
    assert (entry.config.name, entry.config.backend, entry.config.max_batch_size) == ("m", "onnxruntime", 4)
    assert entry.config.dynamic_batching is not None
    assert [(s.name, s.datatype, s.dims) for s in entry.config.inputs] == [
        ("INPUT0", "FP32", (16,)),
        ("INPUT1", "FP32", (16,)),
    ]
    assert [s.name for s in entry.config.outputs] == ["OUTPUT0", "OUTPUT1"]


def test_the_config_that_is_shown_holds_what_was_decided(model: Path) -> None:
    shown = read_model(model).triton_config
    assert shown["name"] == "m"
    assert (shown["backend"], shown["platform"]) == ("onnxruntime", "onnxruntime_onnx")
    assert shown["default_model_filename"] == "model.onnx"
    assert shown["version_policy"] == {"latest": {"num_versions": 1}}
    assert shown["instance_group"][0]["kind"] == "KIND_CPU"
    assert shown["input"][0]["dims"] == [16]


def test_a_label_file_must_be_there(model: Path) -> None:
    text = CONFIG.replace('name: "OUTPUT1"', 'label_filename: "labels.txt" name: "OUTPUT1"')
    (model / "config.pbtxt").write_text(text, encoding="utf-8")
    assert "label_filename = 'labels.txt', but the model's folder has no such file" in read_model(model).reason
    (model / "labels.txt").touch()
    assert read_model(model).reason == ""
    (model / "config.pbtxt").write_text(text.replace("labels.txt", "../labels.txt"), encoding="utf-8")
    assert "leads out of the model's folder" in read_model(model).reason


@pytest.mark.parametrize(
    ("files", "filename", "backend"),
    [
        (("model.onnx",), "", "onnxruntime"),
        (("model.py",), "", "python"),
        (("net.onnx",), "net.onnx", "onnxruntime"),
        (("main.py",), "main.py", "python"),
        (("model.plan",), "", ""),
    ],
)
def test_the_backend_is_guessed_from_the_files(files: tuple[str, ...], filename: str, backend: str) -> None:
    assert guess_backend([Listed("1", is_dir=True, files=files)], filename) == backend


def test_version_numbers_are_ordered_as_numbers() -> None:
    listing = [Listed(name, is_dir=True, files=("f",)) for name in ("9", "10", "100", "2")]
    assert find_versions(listing, "f").versions == ("100", "10", "9", "2")


def test_each_instance_of_each_group_gets_a_source_of_its_own(model: Path) -> None:
    groups = "instance_group { kind: KIND_CPU count: 2 } instance_group { kind: KIND_GPU gpus: [ 1, 2 ] count: 2 }"
    text = CONFIG.replace("instance_group [ { kind: KIND_CPU count: 1 } ]", groups)
    (model / "config.pbtxt").write_text(text, encoding="utf-8")
    entry: ModelEntry = read_model(model)
    sources = list(instance_sources(entry, "1", 3))
    assert [source.index for source in sources] == [0, 1, 2, 3, 4, 5]
    assert [source.device_id for source in sources] == [None, None, 1, 1, 2, 2]
    assert sources[0].version_dir == model / "1"
    assert sources[0].intra_op_threads == 3
    assert entry.config is not None
    assert len(sources) == entry.config.num_instances
