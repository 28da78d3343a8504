"""Texts to token ids, for models whose config names a tokenizer."""
