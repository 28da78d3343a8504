"""The one way a model's files can be refused. Its text is the reason that users read in the repository index."""

from __future__ import annotations


class ConfigRefused(Exception):
    """The model can't be served as its config says; the message names the field and its value."""
