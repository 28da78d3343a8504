"""Writes the tokenizer of `embed8`: a token per byte, so that the model can read the text back from its ids.

Run it by hand: `python tests/models/make_tokenizer.py`. The result is in the repository.
"""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

# GPT-2's stand-ins for the bytes, in order of the bytes: printable ones are themselves.
PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}


def stand_ins() -> list[str]:
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in PRINTABLE else chr(next(others)) for byte in range(256)]


def main() -> None:
    tokenizer = Tokenizer(models.BPE({char: byte for byte, char in enumerate(stand_ins())}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(Path(__file__).parent / "embed8" / "tokenizer.json"))


if __name__ == "__main__":
    main()
