"""A model in a format that is not served hurts no other, and callers read why: in the words of docs/formats.md."""

import json
import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from tests.support.running import FIXTURES, headrace_up

PAGE = (Path(__file__).parents[2] / "docs/formats.md").read_text()


def post(url: str) -> tuple[int, str, str]:
    """Status, code and body."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, b'{"inputs":[]}', method="POST"), timeout=30) as answer:
            return answer.status, "", answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.headers["headrace-error"], e.read().decode()


@pytest.mark.timeout(200)
def test_a_savedmodel_is_refused_in_these_words_beside_a_model_that_serves(tmp_path: Path) -> None:
    (quoted,) = re.findall(r"^```refused-infer\n(.*)\n```$", PAGE, re.MULTILINE)
    repository = tmp_path / "models"
    shutil.copytree(FIXTURES / "add_sub", repository / "add_sub")
    (repository / "savedmodel/1/model.savedmodel").mkdir(parents=True)
    (repository / "savedmodel/1/model.savedmodel/saved_model.pb").write_bytes(b"x")
    (repository / "savedmodel/config.pbtxt").write_text('platform: "tensorflow_savedmodel"')
    x = np.ones((1, 16), np.float32)
    with headrace_up(tmp_path, repository) as running, running.client() as client:
        status, code, body = post(f"{running.http_url}/v2/models/savedmodel/infer")
        assert (status, code) == (503, "model-not-ready")
        assert json.loads(body) == {"error": quoted}
        index = json.loads(post(f"{running.http_url}/v2/repository/index")[2])
        assert [entry["reason"] in quoted for entry in index if entry["name"] == "savedmodel"] == [True]
        assert np.array_equal(client.infer("add_sub", INPUT0=x, INPUT1=x).outputs["OUTPUT0"], x + x)
