"""What a person types: the command line, the one-machine launcher, the Python client."""

__version__ = "0.1.0"
