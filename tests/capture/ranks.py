"""Cells run as a rank runs them, each in a fork of a bare process, and as the notebook itself does."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from nbtorchjob import capture
from nbtorchjob.payload import archive, results
from nbtorchjob.spec.jobspec import JobSpec

KEY = b"key"
_SERVER = """
import json, os, sys
sys.path[:0] = [sys.argv[1]]
if "torch" in sys.argv:
    import torch
from nbtorchjob.runtime.rank import call
from nbtorchjob.runtime.objects import rebuilt, sources, wire
from nbtorchjob.runtime.store.payload import Payload
from nbtorchjob.runtime.objects.pickler import Pickler, dumps
os.write(1, b"\\n")

def dump(value, out_of_band):
    return dumps(value, Pickler, out_of_band, sourced=sources.home != sources.HERE)

def whole(value):
    try:
        dump(value, lambda buffer: None)
    except Exception:
        return "what stays here"
    return value

def rank(path, folder, root, names):
    out = os.open(os.path.join(folder, "out"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.chdir(root)
    said, value, space = {}, None, {}
    try:
        got = Payload(path)
        got.verify(b"key")
        got.extract(os.path.join(folder, "files"))
        sys.path.insert(0, os.path.join(folder, "files"))
        got.show_sources()
        found = rebuilt.loads(got.call(), got.buffers())
        space = call.namespace_of(found)
        value = call.run(found)
    except BaseException as exc:
        said = {"error": "%s: %s" % (type(exc).__name__, exc)}
    sys.stdout.flush()
    if names is not None:
        value = whole(value), {name: whole(space[name]) for name in names if name in space}
    if names is not None or not said:
        wire.write_value(os.path.join(folder, "value"), value, dump, b"key")
    with open(os.path.join(folder, "said"), "w") as file:
        json.dump(said, file)

for line in sys.stdin:
    pid = os.fork()
    if not pid:
        try:
            rank(*json.loads(line))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.write(1, b"\\n")
"""


class Ranks:
    """A bare process that has imported torch, and runs each payload in a fork of its own.

    With a ``python`` other than this one it imports no torch: torch is installed for this one.
    """

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        self.folder = folder
        program = folder / "program.pyz"
        with program.open("wb") as file:
            archive.write(file, capture.from_function(print), JobSpec(), KEY)
        # Not even the working directory is on its path: the payload has to carry what a cell needs.
        command = [
            python,
            "-I",
            "-c",
            _SERVER,
            str(program),
            *(["torch"] if python == sys.executable else []),
        ]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._ready = False

    def run(self, call: capture.Call, names: list[str] | None = None) -> tuple[Any, str, str]:
        """Run the call; return its value, its output and its error.

        With ``names`` the value is a pair: the value, and what these names hold in the cell's namespace then.
        """
        path = self.folder / "job.pyz"
        with path.open("wb") as file:
            archive.write(file, call, JobSpec(backend="kubernetes"), KEY)
        for name in ("value", "said"):
            (self.folder / name).unlink(missing_ok=True)
        assert self._process.stdin
        assert self._process.stdout
        request = json.dumps([str(path), str(self.folder), str(Path.cwd()), names]) + "\n"
        self._process.stdin.write(request.encode())
        self._process.stdin.flush()
        while not self._ready:
            self._ready = bool(self._process.stdout.readline())
        self._process.stdout.readline()
        record = json.loads((self.folder / "said").read_text())
        printed = (self.folder / "out").read_text()
        error = record.get("error", "")
        if error and names is None:
            return None, printed, error
        return results.load(results.FetchedValue(self.folder / "value", KEY), "the cell"), printed, error

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def plainly(text: str, namespace: dict[str, Any]) -> tuple[Any, str, str]:
    """Run a cell in its notebook; return its value, its output and its error."""
    tree = ast.parse(text)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

    def finished(code: Any) -> Any:
        outcome = eval(code, namespace)
        return asyncio.run(outcome) if inspect.iscoroutine(outcome) else outcome

    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            finished(compile(tree, "<cell>", "exec", flags, True))
            value = None
            if isinstance(last, ast.Expr):
                value = finished(compile(ast.Expression(last.value), "<cell>", "eval", flags, True))
    except BaseException as exc:
        return None, out.getvalue(), f"{type(exc).__name__}: {exc}"
    return value, out.getvalue(), ""
