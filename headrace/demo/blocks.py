"""The blocks of the story. Each shows something, checks it, and ends with the command that does it by hand."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from contract.errors import HeadraceError
from contract.tensors import Array
from headrace.client import Client
from headrace.cluster import look
from headrace.demo.moderation import hot_loaded, three_models
from headrace.demo.stage import Stage
from headrace.up import program
from transport.connection import connect
from transport.settings import BrokerSettings

CHAT = (
    ("Thanks, that fixed it for me!", False),
    ("You are a worthless idiot.", True),
    ("Could you look at my pull request?", False),
    ("Shut up, nobody wants you here, moron.", True),
    ("Have a nice weekend, everybody!", False),
)
QUESTION = "How do I get my money back?"
NEAREST = "You can return any item within thirty days for a full refund."
SENTENCES = (
    "Our office is closed on public holidays.",
    "Reset your password from the sign-in page.",
    "The parcel left our warehouse this morning.",
    NEAREST,
    "Tap the menu, then choose dark mode.",
    "We roast our coffee beans every Monday.",
    "Your invoice is attached to this message.",
    "The battery lasts about nine hours.",
)
NUM_REQUESTS = 200
NUM_CALLERS = 8
KILL_AFTER = 60
"""Answers before the worker dies: enough to come, enough behind."""
SAME = 1e-4
"""Largest difference of an embedding's element from the one asked for alone: padding and batching change rounding."""


async def toxicity(stage: Stage) -> bool:
    """Five chat messages and what the model thinks of them."""
    stage.title("five chat messages, are they toxic?")
    return await asyncio.to_thread(_toxicity, stage)


def _toxicity(stage: Stage) -> bool:
    wrong: list[str] = []
    with stage.client() as client:
        client.input_specs("toxicity")  # else the first message's time holds this question too
        for text, is_toxic in CHAT:
            started_s = time.perf_counter()
            outputs = client.infer("toxicity", text=[text]).outputs
            took_ms = (time.perf_counter() - started_s) * 1000
            score, label = float(outputs["score"].flat[0]), int(outputs["label"].flat[0])
            stage.say.text(f"          {'toxic' if label else 'fine':<6} {score:6.1%} {took_ms:6.1f} ms   {text}")
            if label != is_toxic:
                wrong.append(text)
    stage.by_hand(f"{program('headrace')} infer toxicity --text {shlex.quote(CHAT[1][0])}")
    return stage.verdict(wrong)


async def nearest(stage: Stage) -> bool:
    """Which of eight sentences is nearest to a question."""
    stage.title(f"which of eight sentences is nearest to {QUESTION!r}")
    return await asyncio.to_thread(_nearest, stage)


def _nearest(stage: Stage) -> bool:
    tokens = _tokens(stage, (QUESTION, *SENTENCES))
    started_s = time.perf_counter()
    with stage.client() as client:
        question, *others = [_embed(client, ids) for ids in tokens]
    took_ms = (time.perf_counter() - started_s) * 1000
    ranked = sorted(((float(question @ o), s) for o, s in zip(others, SENTENCES, strict=True)), reverse=True)
    for similarity, sentence in ranked[:3]:
        stage.say.text(f"          {similarity:5.2f}  {sentence}")
    stage.say.text(f"          9 embeddings in {took_ms:.0f} ms")
    ids = json.dumps(tokens[0], separators=(",", ":"))
    ones = json.dumps([1] * len(tokens[0]), separators=(",", ":"))
    stage.by_hand(f"{program('headrace')} infer minilm -i 'input_ids={ids}' -i 'attention_mask={ones}'")
    return stage.verdict([] if ranked[0][1] == NEAREST else [f"{ranked[0][1]!r} came first, not {NEAREST!r}"])


async def killed_worker(stage: Stage) -> bool:
    """Two hundred requests while one of two workers is killed."""
    stage.title(f"{NUM_REQUESTS} requests while one of two workers is killed with -9")
    victim = await _a_worker(stage)
    tokens = _tokens(stage, SENTENCES)
    with stage.client() as client:
        wanted = await asyncio.to_thread(lambda: [_embed(client, ids) for ids in tokens])
    half_way = threading.Event()
    volley = _Volley(stage, tokens, wanted, half_way)
    running = asyncio.create_task(asyncio.to_thread(volley.fire))
    await asyncio.to_thread(half_way.wait, 30)
    os.kill(victim, signal.SIGKILL)
    stage.say.text(f"          kill -9 {victim} after {volley.num_answered} answers")
    await running
    slowest_ms = max(volley.seconds, default=0.0) * 1000
    stage.say.text(f"          {volley.num_answered} of {NUM_REQUESTS} answered, slowest {slowest_ms:.0f} ms")
    stage.by_hand(f"kill -9 PID, of a worker that `{program('headrace')} status` lists")
    lost = NUM_REQUESTS - volley.num_answered
    return stage.verdict(volley.wrong[:3] + ([f"{lost} of {NUM_REQUESTS} requests got no answer"] if lost else []))


class _Volley:
    """`NUM_CALLERS` threads ask until all requests are out; each answer is compared with the one asked for before."""

    def __init__(self, stage: Stage, tokens: list[list[int]], wanted: list[Array], half_way: threading.Event) -> None:
        self._stage = stage
        self._tokens = tokens
        self._wanted = wanted
        self._half_way = half_way
        self._lock = threading.Lock()
        self.seconds: list[float] = []
        self.wrong: list[str] = []

    @property
    def num_answered(self) -> int:
        """Answers that came, right or wrong."""
        return len(self.seconds)

    def fire(self) -> None:
        """Ask everything; returns when the last has ended."""
        with ThreadPoolExecutor(NUM_CALLERS) as callers:
            list(callers.map(self._share, range(NUM_CALLERS)))
        self._half_way.set()

    def _share(self, caller: int) -> None:
        with self._stage.client() as client:
            for number in range(caller, NUM_REQUESTS, NUM_CALLERS):
                self._one(client, number % len(self._tokens))

    def _one(self, client: Client, which: int) -> None:
        started_s = time.perf_counter()
        try:
            found = _embed(client, self._tokens[which])
        except HeadraceError as e:
            with self._lock:
                self.wrong.append(f"{e.code}: {e.message}")
            return
        with self._lock:
            self.seconds.append(time.perf_counter() - started_s)
            if float(np.abs(found - self._wanted[which]).max()) > SAME:
                self.wrong.append(f"another embedding of {SENTENCES[which]!r} than before")
            if len(self.seconds) >= KILL_AFTER:
                self._half_way.set()


def _tokens(stage: Stage, texts: tuple[str, ...]) -> list[list[int]]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(stage.repository / "minilm/1/tokenizer.json"))
    return [list(tokenizer.encode(text).ids) for text in texts]


def _embed(client: Client, ids: list[int]) -> Array:
    outputs = client.infer("minilm", input_ids=[ids], attention_mask=[[1] * len(ids)]).outputs
    found: Array = outputs["sentence_embedding"][0]
    return found


async def _a_worker(stage: Stage) -> int:
    """Process id of one worker."""
    transport = await connect(BrokerSettings(servers=[stage.running.broker_url]), name="headrace-demo")
    try:
        return min(beat.pid for beat in (await look(transport)).workers.values())
    finally:
        await transport.close()


BLOCKS: tuple[Callable[[Stage], Awaitable[bool]], ...] = (toxicity, nearest, hot_loaded, three_models, killed_worker)
"""In the order they are told. What comes later adds its own."""
