"""Programs that tests run as processes of their own, one per file."""

import sys
from pathlib import Path

HERE = Path(__file__).parent


def program(name, *words, python=()):
    """Return the command that runs a program; ``python`` are options of the interpreter."""
    return [sys.executable, *python, str(HERE / f"{name}.py"), *map(str, words)]
