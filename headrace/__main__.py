"""`python -m headrace`: the command line without its script."""

from headrace.cli import app

if __name__ == "__main__":
    app(prog_name="headrace")
