"""What tests run as processes of their own, each file a program."""

import sys
from pathlib import Path

HERE = Path(__file__).parent


def program(name, *words, python=()):
    """Return the command that runs a program, with these options of Python's."""
    return [sys.executable, *python, str(HERE / f"{name}.py"), *map(str, words)]
