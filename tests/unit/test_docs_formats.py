"""docs/formats.md quotes what one really sees when a format is refused, and its conversion runs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

from headrace.config.settings import HeadraceSettings
from headrace.doctor import _repository_findings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/formats.md").read_text()
REFUSED = [block.strip() for block in re.findall(r"^```refused\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)]
CODE: list[str] = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MODELS_PYTHON = ROOT / ".venv-models/bin/python"

CONFIGS = {
    "savedmodel": 'platform: "tensorflow_savedmodel"',
    "torchscript": 'platform: "pytorch_libtorch"',
    "forest": 'backend: "fil"',
    "engine": 'platform: "tensorrt_plan"',
    "ensemble": 'platform: "ensemble"\nmax_batch_size: 1',
}
FILES = {
    "savedmodel": "model.savedmodel/saved_model.pb",
    "keras": "model.keras",
    "torchscript": "model.pt",
    "archive": "model.mar",
    "pickle": "model.pkl",
    "forest": "xgboost.json",
    "renamed": "model.onnx",
    "engine": "model.plan",
    "ensemble": "nothing.txt",
}


def findings(repository: Path) -> dict[str, str]:
    defaults = HeadraceSettings()
    worker = defaults.worker.model_copy(update={"model_repository": repository})
    found = _repository_findings(defaults.model_copy(update={"worker": worker}))
    return {f.text.partition(":")[0].partition(",")[0]: f.text.partition(": ")[2] for f in found}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    repository = tmp_path_factory.mktemp("formats")
    for model, file in FILES.items():
        path = repository / model / "1" / file
        path.parent.mkdir(parents=True)
        path.write_bytes(b"\x80\x04not an onnx file")
        if model in CONFIGS:
            (repository / model / "config.pbtxt").write_text(CONFIGS[model])
    return {model: text.replace(f"{repository}/", "") for model, text in findings(repository).items()}


@pytest.mark.parametrize("model", FILES)
def test_what_is_refused_is_refused_in_these_words(model: str, refusals: dict[str, str]) -> None:
    (quoted,) = [line for line in REFUSED if line.startswith(f"{model}/")]
    assert refusals[model] == quoted


def test_every_quote_is_tested() -> None:
    assert sorted(line.partition("/")[0] for line in REFUSED) == sorted(FILES)


def test_a_backend_that_is_missing_is_bad_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "x").write_text("x")
    (tmp_path / "m" / "config.pbtxt").write_text('backend: "fil"')
    defaults = HeadraceSettings()
    worker = defaults.worker.model_copy(update={"model_repository": tmp_path})
    found = _repository_findings(defaults.model_copy(update={"worker": worker}))
    assert [f.state for f in found] == ["bad"]


@pytest.mark.skipif(not MODELS_PYTHON.exists(), reason="needs `make models`: scikit-learn is in its environment")
def test_the_conversion_of_a_scikit_learn_model_runs_and_its_result_is_served(tmp_path: Path) -> None:
    (code,) = [c for c in CODE if "skl2onnx" in c]
    subprocess.run([MODELS_PYTHON, "-c", code], cwd=tmp_path, check=True, timeout=100)
    assert findings(tmp_path) == {"iris": ""}
    from onnxruntime import InferenceSession

    session = InferenceSession(tmp_path / "iris/1/model.onnx")
    labels = session.run(None, {"X": np.array([[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]], np.float32)})[0]
    assert labels.tolist() == [0, 2]


@pytest.mark.parametrize("code", CODE)
def test_the_code_of_the_page_is_python(code: str) -> None:
    compile(code, "formats.md", "exec")


def test_every_link_within_the_page_has_its_heading() -> None:
    titles = re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)
    headings = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= headings
