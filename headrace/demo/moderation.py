"""Blocks of the chat moderation story: a version that arrives while requests run, and three models at once."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Lock

import numpy as np

from contract.errors import HeadraceError
from headrace.client import Client
from headrace.demo.stage import HOT_LOADED, Stage
from headrace.up import program


@dataclass(frozen=True, slots=True)
class Judged:
    """A message and what the three models must say of it."""

    text: str
    toxicity: str
    sentiment: str
    intent: str


MESSAGES = (
    Judged("This is terrible, it broke everything again.", "fine", "negative", "statement"),
    Judged("When does the train leave?", "fine", "neutral", "question"),
    Judged("Can you write a class in Java?", "fine", "neutral", "request"),
    Judged("Just finished the race, so happy with my time :)", "fine", "positive", "statement"),
    Judged("Hello, how are you?", "fine", "neutral", "small talk"),
    Judged("He is such a pathetic idiot, I hate him.", "toxic", "negative", "statement"),
)
MODELS = ("toxicity", "sentiment", "intent")
TEXTS = ("The report has twelve pages.", "lol best day ever", "worst update ever :(", "Hello, how are you?")
"""What both versions are asked; they learned from other texts, and must not say the same of all."""
NUM_CALLERS = 4
ANSWERS_AROUND = 100
"""Answers of version 1 before the new one is put in place, and of version 2 before the block ends."""
PATIENCE_S = 30.0


async def hot_loaded(stage: Stage) -> bool:
    """Version 2 of a model is put into the repository while four callers ask; then both are asked."""
    stage.title(f"version 2 of {HOT_LOADED} is put into the folder while {NUM_CALLERS} callers ask without a pause")
    callers = _Callers(stage)
    asking = asyncio.create_task(asyncio.to_thread(callers.ask))
    try:
        wrong = await asyncio.to_thread(_put_in_place, stage, callers)
    finally:
        callers.stop.set()
        await asking
    told = ", ".join(f"{count} by version {version}" for version, count in sorted(callers.answered.items()))
    stage.say.text(f"          answered: {told}; failed: {len(callers.failures)}")
    wrong += callers.failures[:3]
    if not wrong:
        wrong += await asyncio.to_thread(_compared, stage)
    folder = f"model_repository/{HOT_LOADED}"
    stage.by_hand(f"cp -r {folder}/2 {folder}/3 (after: make up ARGS='--set worker.model_control_mode=poll')")
    return stage.verdict(wrong)


class _Callers:
    """Threads that ask for the newest version until they are told to stop."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._lock = Lock()
        self.stop = Event()
        self.answered: Counter[str] = Counter()
        self.failures: list[str] = []

    def ask(self) -> None:
        """Returns after `stop`."""
        with ThreadPoolExecutor(NUM_CALLERS) as pool:
            list(pool.map(self._one, range(NUM_CALLERS)))

    def wait_for(self, version: str) -> bool:
        """Whether the version has answered often enough, in time."""
        until_s = time.monotonic() + PATIENCE_S
        while self.answered[version] < ANSWERS_AROUND and not self.failures:
            if time.monotonic() > until_s:
                return False
            time.sleep(0.01)
        return not self.failures

    def _one(self, caller: int) -> None:
        with self._stage.client() as client:
            while not self.stop.is_set():
                try:
                    answer = client.infer(HOT_LOADED, text=[TEXTS[caller % len(TEXTS)]])
                except HeadraceError as e:
                    with self._lock:
                        self.failures.append(f"{e.code}: {e.message}")
                    return
                with self._lock:
                    self.answered[answer.version] += 1


def _put_in_place(stage: Stage, callers: _Callers) -> list[str]:
    if not callers.wait_for("1"):
        return ["version 1 did not answer"]
    started_s = time.monotonic()
    # A link appears whole. Of a copy a worker may see half a version: it then says so, and looks again.
    (stage.watched / HOT_LOADED / "2").symlink_to(stage.new_version, target_is_directory=True)
    if not callers.wait_for("2"):
        return [f"version 2 did not answer within {PATIENCE_S:.0f} s"]
    stage.say.text(f"          in place, loaded, answering: {time.monotonic() - started_s:.1f} s")
    return []


def _compared(stage: Stage) -> list[str]:
    """Both versions, side by side."""
    stage.say.text("          version 1   version 2")
    differ = 0
    with stage.client() as client:
        for text in TEXTS:
            (first, sure_1), (second, sure_2) = (_verdict(stage, client, HOT_LOADED, text, v) for v in ("1", "2"))
            differ += abs(sure_1 - sure_2) > 1e-3 or first != second
            stage.say.text(f"          {first:<8} {sure_1:3.0%}  {second:<8} {sure_2:3.0%}   {text}")
    return [] if differ else ["both versions say the same"]


async def three_models(stage: Stage) -> bool:
    """Each message goes to three models at the same time."""
    stage.title("six chat messages, each to three models at once")
    return await asyncio.to_thread(_three_models, stage)


def _three_models(stage: Stage) -> bool:
    wrong: list[str] = []
    with ThreadPoolExecutor(len(MODELS)) as pool, stage.client() as a, stage.client() as b, stage.client() as c:
        clients = dict(zip(MODELS, (a, b, c), strict=True))
        for model, client in clients.items():
            client.input_specs(model)  # else the first message's time holds this question too
        for message in MESSAGES:
            started_s = time.perf_counter()
            asked = [pool.submit(_verdict, stage, clients[model], model, message.text) for model in MODELS]
            found = [one.result()[0] for one in asked]
            took_ms = (time.perf_counter() - started_s) * 1000
            toxicity, sentiment, intent = found
            stage.say.text(f"          {toxicity:<6} {sentiment:<9} {intent:<10} {took_ms:6.1f} ms   {message.text}")
            expected = [message.toxicity, message.sentiment, message.intent]
            if found != expected:
                wrong.append(f"{message.text!r} is {', '.join(found)}, not {', '.join(expected)}")
    stage.by_hand(f"{program('headrace')} infer intent --text {shlex.quote(MESSAGES[2].text)}")
    return stage.verdict(wrong)


def _verdict(stage: Stage, client: Client, model: str, text: str, version: str = "") -> tuple[str, float]:
    """Label and how sure the model is of it."""
    outputs = client.infer(model, version=version, text=[text]).outputs
    if model == "toxicity":
        score = float(outputs["score"].flat[0])
        return ("toxic", score) if int(outputs["label"].flat[0]) else ("fine", 1 - score)
    logits = outputs["logits"][0]
    likely = np.exp(logits - logits.max())
    labels = (stage.repository / model / "labels.txt").read_text(encoding="utf-8").splitlines()
    return labels[int(likely.argmax())], float(likely.max() / likely.sum())
