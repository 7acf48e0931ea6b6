"""*Run*, *Dry run* and *Doctor*: their output appears below them, while the notebook stays free.

``Latest`` does work that the notebook's main thread must not wait for.
"""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

import ipywidgets as widgets
from IPython.core.getipython import get_ipython

from nbtorchjob import api, capture, submission
from nbtorchjob.capture import identity
from nbtorchjob.commands import front
from nbtorchjob.commands.table import OFFERS
from nbtorchjob.errors import CaptureError, NBTorchJobError
from nbtorchjob.job import Job
from nbtorchjob.machine.folders import working
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobState, Origin
from nbtorchjob.text import words
from nbtorchjob.ui import elements
from nbtorchjob.ui.card import view

# Starts where the notebook's variables are available, and returns the work that doesn't need them.
_Verb: TypeAlias = Callable[[JobSpec], Callable[[], None]]


class Actions:
    """Buttons that act on the spec that ``get_spec`` returns, and the output of the last one."""

    def __init__(self, get_spec: Callable[[], JobSpec | None]) -> None:
        self.job: Job[Any] | None = None
        self._get_spec = get_spec
        self.call = widgets.Combobox(
            description="call",
            placeholder="the function defined last, without arguments",
            tooltip="What to run, such as train(lr=0.1)",
        )
        self.run = self._button("Run", "Submit the call; the notebook stays free", self._run)
        self.dry_run = self._button("Dry run", "Show what would be sent, without sending it", self._dry_run)
        self.doctor = self._button(
            "Doctor", "Check everything that a job with these settings needs", self._doctor
        )
        self.run.button_style = "primary"
        self.output = widgets.Output()
        buttons = widgets.HBox([self.call, self.run, self.dry_run, self.doctor])
        self.box = widgets.VBox([buttons.add_class("nbtorchjob-actions"), self.output])

    def enable(self, *, enabled: bool) -> None:
        """Enable or disable the buttons."""
        for button in (self.run, self.dry_run, self.doctor):
            button.disabled = not enabled

    def _button(self, text: str, tooltip: str, verb: _Verb) -> Any:
        def act(_: Any) -> None:
            spec = self._get_spec()
            if spec is None:
                return
            self._say("\u2026")
            # The work starts here, where the notebook's variables are, and continues in a thread.
            work = self._reporting_errors(lambda: verb(spec))
            if work is not None:
                rest = partial(self._reporting_errors, work)
                threading.Thread(target=rest, name="nbtorchjob-panel", daemon=True).start()

        button = widgets.Button(description=text, tooltip=tooltip)
        button.on_click(act)
        return button

    def _run(self, spec: JobSpec) -> Callable[[], None]:
        call, origin = self._captured()

        def submit() -> None:
            self.job = job = front.remember(submission.submit(call, spec, origin))
            shown = _Card(self.output)
            view.watch(job, shown)
            value = ""
            if job.exception() is None:
                value = words.short(job.returned())
            shown.close(job.state, value)

        return submit

    def _dry_run(self, spec: JobSpec) -> Callable[[], None]:
        call, _ = self._captured()
        return lambda: self._say(submission.dry_run(call, spec))

    def _doctor(self, spec: JobSpec) -> Callable[[], None]:
        needs = capture.of_notebook(vars(sys.modules["__main__"]))
        return lambda: self._say(elements.finding_lines(api.doctor(spec, needs)))

    def _captured(self) -> tuple[capture.Call, Origin]:
        """Capture the call with all that it needs, while no cell can change that."""
        shell = get_ipython()
        if shell is None:
            raise CaptureError("the panel runs jobs only in a notebook: use submit(fn, spec=panel.spec)")
        text = self.call.value.strip() or f"{_last_function(shell.user_ns)}()"
        call = capture.from_expression(text, shell.user_ns, root=working())
        return call, identity.origin_in(shell, call.sources)

    def _reporting_errors(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except NBTorchJobError as exc:
            self._say("\n".join(exc._render_traceback_()))
        except Exception as exc:  # an argument's, or a bug of ours that must not get lost in a thread
            self._say(f"{type(exc).__name__}: {exc}")
        return None

    def _say(self, text: str) -> None:
        # Set, not printed: a thread's output appears below whichever cell is running.
        self.output.outputs = ({"output_type": "stream", "name": "stdout", "text": f"{text}\n"},)


class _Card:
    """A job's card in an output widget (a ``View``)."""

    tells = True

    def __init__(self, output: Any) -> None:
        self._output = output

    def draw(self, state: JobState) -> None:
        """Show ``state``."""
        self.close(state)

    def close(self, state: JobState, value: str = "", *, deleted: bool = False) -> None:
        """Show the final state."""
        data = view.mimebundle(state, OFFERS, value)
        self._output.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)


def _last_function(namespace: Mapping[str, Any]) -> str:
    """Return the name of the function that a cell defined last, and that is still a function."""
    for cell in reversed(namespace.get("In") or ()):
        try:
            statements = ast.parse(cell).body
        except SyntaxError:
            continue
        functions = [node for node in statements if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for function in reversed(functions):
            if callable(namespace.get(function.name)):
                return function.name
    raise CaptureError("no cell has defined a function yet: define one, or enter a call such as train()")


T = TypeVar("T")


class Latest:
    """Does one piece of work at a time, in a thread; of the waiting ones, only the newest is done.

    ``then`` receives the work's result, in the same thread. The thread isn't a pool's, as Python waits for
    those at exit, and a cluster that doesn't answer may take a minute.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: Callable[[], None] | None = None
        self._busy = False

    def ask(self, work: Callable[[], T], then: Callable[[T], None]) -> None:
        """Schedule ``work``; it is skipped if newer work arrives before it starts."""
        with self._lock:
            self._waiting = lambda: then(work())
            if not self._busy:
                self._busy = True
                threading.Thread(target=self._run, name="nbtorchjob-panel", daemon=True).start()

    def _run(self) -> None:
        try:
            while True:
                with self._lock:
                    job, self._waiting = self._waiting, None
                    self._busy = job is not None
                if job is None:
                    return
                job()
        except BaseException:
            self._busy = False
            raise
