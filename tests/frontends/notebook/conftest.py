"""A shell that runs cells as a notebook does."""

import pytest


class Notebook:
    """A shell that runs cells as a notebook does, and the cells' output."""

    def __init__(self, shell, capsys):
        self.shell = shell
        self.capsys = capsys

    def run(self, cell):
        self.capsys.readouterr()
        result = self.shell.run_cell(cell, store_history=True)
        self.out, self.err = self.capsys.readouterr()
        self.count = result.execution_count
        return result

    def value(self, cell):
        result = self.run(cell)
        result.raise_error()
        return result.result

    def refusal(self, cell):
        """Return the one line of a usage error."""
        result = self.run(cell)
        assert type(result.error_in_exec).__name__ == "UsageError"
        assert self.out == ""
        assert self.err.count("\n") == 1
        return self.err.removeprefix("UsageError: ").strip()

    def error(self, cell, kind):
        """Return the text that IPython draws for an error."""
        result = self.run(cell)
        assert isinstance(result.error_in_exec, kind)
        return self.out

    def __getitem__(self, name):
        return self.shell.user_ns[name]


@pytest.fixture
def notebook(shell, capsys):
    notebook = Notebook(shell, capsys)
    notebook.run("%load_ext nbtorchjob")
    return notebook
