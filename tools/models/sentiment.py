"""Sentiment: is a text negative, neutral or positive? Two versions of one linear classifier, trained here.

Version 1 knows single tokens and learned from product and film reviews. Version 2 knows pairs of tokens too ("not
good") and learned from tweets, editorials and VADER's lexicon as well: the later training that a chat needed.

    input_ids INT64 [n, s], attention_mask INT64 [n, s]  ->  logits FP32 [n, 3]
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from linear import Example, accuracy, train, write
from vader_ratings import LEXICON, SOURCES, rated_texts

NEGATIVE, NEUTRAL, POSITIVE = range(3)
NEUTRAL_UP_TO = 0.5
"""Of a mean rating from -4 to 4."""
REVIEWS = ("amazon reviews", "film reviews")
NUM_PAIR_ROWS = 1 << 15
STRENGTH = 1.0
WORD_WEIGHT = 0.1
"""Of a word against a sentence: nearly no word of the lexicon is neutral, unlike what people write."""


def build_first(folder: Path) -> dict[str, float]:
    """Write version 1 into `folder`; what it gets right of held-out texts, per source."""
    return _build(folder, REVIEWS, num_pair_rows=0)


def build_second(folder: Path) -> dict[str, float]:
    """Write version 2 into `folder`; what it gets right of held-out texts, per source."""
    return _build(folder, (*SOURCES, LEXICON), NUM_PAIR_ROWS)


def _build(folder: Path, learned_from: Iterable[str], num_pair_rows: int) -> dict[str, float]:
    examples = _examples()
    learned = [example for example in examples if example.source in learned_from]
    weights = train(learned, 3, num_pair_rows, STRENGTH)
    write(weights, "sentiment", folder)
    per_source = {source: [example for example in examples if example.source == source] for source in SOURCES}
    return {source: accuracy(weights, found) for source, found in per_source.items()}


def _examples() -> list[Example]:
    return [
        Example(
            rated.text,
            _label(rated.rating),
            group=rated.text,
            source=rated.source,
            weight=WORD_WEIGHT if rated.source == LEXICON else 1.0,
        )
        for rated in rated_texts()
    ]


def _label(rating: float) -> int:
    if abs(rating) <= NEUTRAL_UP_TO:
        return NEUTRAL
    return POSITIVE if rating > 0 else NEGATIVE
