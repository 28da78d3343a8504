"""Intent: does a chat message state, ask, request something, or make small talk? A linear classifier trained here.

Its classes are where the texts come from, so that nobody had to label them: rated tweets and reviews state things (or
ask, where they end with a question mark), trivia ask, Home Assistant's commands request, a chatterbot's dialogues are
small talk.

    input_ids INT64 [n, s], attention_mask INT64 [n, s]  ->  logits FP32 [n, 4]
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from linear import Example, accuracy, train, write
from templates import SentenceWriter
from vader_ratings import LEXICON, rated_texts

STATEMENT, QUESTION, REQUEST, SMALL_TALK = range(4)
CLASSES = ("statement", "question", "request", "small talk")
NUM_STATEMENTS = 2_500
PER_TEMPLATE = 2
SEED = 7
NUM_PAIR_ROWS = 1 << 14
STRENGTH = 2.0

ASKING_INTENTS = ("HassGet", "HassClimateGet", "HassTimerStatus")
UNUSED_INTENTS = ("HassRespond", "HassNevermind")
ASKING_TOPICS = ("trivia", "history", "science", "literature", "computers", "money", "sports", "politics")
TALKING_TOPICS = ("greetings", "conversations", "emotion", "psychology", "ai", "botprofile", "gossip", "health", "food")
REQUESTING_TOPICS = ("coding",)

FREE_WORDS = {
    "area": ("kitchen", "living room", "bedroom", "office", "garage", "bathroom", "hall"),
    "floor": ("first", "second", "ground", "upstairs"),
    "name": ("ceiling light", "desk lamp", "front door", "radio", "heater", "coffee machine", "printer"),
    "zone": ("home", "work", "school"),
    "message": ("dinner is ready", "the meeting starts", "please come down", "we leave in ten minutes"),
    "search_query": ("some jazz", "the evening news", "something quiet", "the new album", "my favourite song"),
    "timer_name": ("pizza", "laundry", "tea", "meeting", "break"),
    "timer_command": ("turn off the lights", "open the window", "remind me", "stop the music"),
    "shopping_list_item": ("milk", "bread", "apples", "a new keyboard", "batteries"),
    "todo_list_item": ("call the dentist", "send the invoice", "review the pull request", "buy tickets"),
}
"""For slots that anything fits: Home Assistant takes them from its user's own house."""


def build(folder: Path) -> dict[str, float]:
    """Write the model into `folder`; what it gets right of held-out texts, per class."""
    examples = list(_examples())
    weights = train(examples, len(CLASSES), NUM_PAIR_ROWS, STRENGTH)
    write(weights, "intent", folder)
    per_class = {name: [e for e in examples if e.label == label] for label, name in enumerate(CLASSES)}
    return {"all": accuracy(weights, examples)} | {name: accuracy(weights, found) for name, found in per_class.items()}


def _examples() -> Iterator[Example]:
    choose = random.Random(SEED)  # noqa: S311 - draws texts, keeps no secret
    chat = [rated.text for rated in rated_texts() if rated.source not in ("editorials", LEXICON)]
    for text in choose.sample(chat, NUM_STATEMENTS):
        yield Example(text, QUESTION if text.endswith("?") else STATEMENT, text)
    yield from _home_commands()
    yield from _dialogues(choose)


def _home_commands() -> Iterator[Example]:
    """Sentences of Home Assistant's templates; those of one template are held out together."""
    path = _package("home_assistant_intents") / "data" / "en.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    writer = SentenceWriter(data["expansion_rules"], {**_slot_values(data["lists"]), **FREE_WORDS}, SEED)
    for intent, entry in sorted(data["intents"].items()):
        if intent in UNUSED_INTENTS:
            continue
        label = QUESTION if intent.startswith(ASKING_INTENTS) else REQUEST
        for template in sorted({template for block in entry["data"] for template in block["sentences"]}):
            for text in sorted({writer.sentence(template) for _ in range(PER_TEMPLATE)}):
                yield Example(text, label, template)


def _slot_values(lists: dict[str, Any]) -> dict[str, list[str]]:
    found = {}
    for name, entry in lists.items():
        if "range" in entry:
            found[name] = [str(number) for number in range(entry["range"]["from"], entry["range"]["to"], 5)]
        else:
            found[name] = [value["in"] for value in entry.get("values", ())]
    return found


def _dialogues(choose: random.Random) -> Iterator[Example]:
    """What people open a dialogue with, by topic; half of the questions lose their mark, as in a chat."""
    labels = dict.fromkeys(ASKING_TOPICS, QUESTION) | dict.fromkeys(TALKING_TOPICS, SMALL_TALK)
    labels |= dict.fromkeys(REQUESTING_TOPICS, REQUEST)
    for topic, label in labels.items():
        path = _package("chatterbot_corpus") / "data" / "english" / f"{topic}.yml"
        for text in sorted(_openings(path)):
            is_marked = label != QUESTION or choose.random() < 0.5
            yield Example(text if is_marked else text.rstrip("?"), label, text)


def _openings(path: Path) -> set[str]:
    """First lines; of greetings also the answers, which greet too."""
    conversations = yaml.safe_load(path.read_text(encoding="utf-8"))["conversations"]
    last = None if path.stem == "greetings" else 1
    return {str(line).strip() for lines in conversations for line in lines[:last]}


def _package(name: str) -> Path:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"package {name} is missing, see requirements/models.lock")
    return Path(spec.origin).parent
