"""Cells in a real Jupyter kernel: outputs, errors, interrupts, completion, and a kernel that dies."""

import re
import signal
import time
from contextlib import contextmanager
from typing import Any

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

import nbtorchjob
from nbtorchjob.state import Phase
from tests.patience import LIMIT

pytestmark = [pytest.mark.kernel, pytest.mark.torch]

GOES_ON = """import os, time
n = 0
while not os.path.exists(stop):
    print("line", n)
    n += 1
    time.sleep(0.01)
n"""


class Cell:
    """The output of a cell so far."""

    def __init__(self, notebook, code):
        self._notebook = notebook
        self.id = notebook.client.execute(code)
        self.messages: list[tuple[str, dict[str, Any]]] = []

    def until(self, kind, text=""):
        """Read messages until one of that kind contains that text; return its content."""
        until_s = time.monotonic() + LIMIT
        while time.monotonic() < until_s:
            message = self._notebook.client.get_iopub_msg(timeout=LIMIT)
            if message["parent_header"].get("msg_id") == self.id:
                self.messages.append((message["msg_type"], message["content"]))
                if message["msg_type"] == kind and text in str(message["content"]):
                    return message["content"]
        raise TimeoutError(f"no {kind} with {text!r} came, but {[name for name, _ in self.messages]}")

    def end(self):
        self.until("status", "idle")
        return self

    def all(self, kind):
        return [content for name, content in self.messages if name == kind]

    @property
    def value(self):
        (content,) = self.all("execute_result")
        return content["data"]["text/plain"]

    @property
    def error(self):
        (content,) = self.all("error")
        return content

    @property
    def text(self):
        return "".join(content["text"] for content in self.all("stream"))


class Kernel:
    """A notebook's kernel with the extension loaded."""

    def __init__(self, manager):
        self.manager = manager
        self.client: BlockingKernelClient = manager.client()
        self.client.start_channels()
        self.client.allow_stdin = False  # as in nbclient; with stdin the client is a console
        self.client.wait_for_ready(timeout=LIMIT)
        assert not self.run("%load_ext nbtorchjob").all("error")

    def start(self, code):
        return Cell(self, code)

    def run(self, code):
        return self.start(code).end()

    def interrupt(self):
        self.manager.signal_kernel(signal.SIGINT)

    def kill(self):
        self.manager.shutdown_kernel(now=True)

    def completions(self, code):
        reply = self.client.complete(code, len(code), reply=True, timeout=LIMIT)
        return reply["content"]["matches"]


@contextmanager
def started():
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel()
    try:
        kernel = Kernel(manager)
        yield kernel
        kernel.client.stop_channels()
    finally:
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@pytest.fixture(scope="module")
def shared():
    with started() as kernel:
        yield kernel


@pytest.fixture
def kernel(shared, folder):
    """Yield the kernel that the tests share, with ``stop`` set to this test's file."""
    shared.run(f"stop = {str(folder / 'stop')!r}")
    yield shared
    (folder / "stop").touch()


def test_a_cells_value_is_its_result(kernel):
    cell = kernel.run("%%torchjob --nproc-per-node 2\nimport os\nint(os.environ['WORLD_SIZE']) * 21")

    assert cell.value == "42"
    assert not cell.all("error")


def test_a_console_which_updates_no_output_gets_a_log_and_a_last_line(kernel, folder, monkeypatch):
    monkeypatch.setattr(kernel.client, "allow_stdin", True)
    cell = kernel.start(f"%%torchjob\n{GOES_ON}")
    cell.until("stream", "line 3")
    (folder / "stop").touch()
    cell.end()

    assert "succeeded" in cell.text
    assert not cell.all("display_data")


def card_of(cell):
    """Return the last drawing of the cell's one card."""
    (card,) = cell.all("display_data")
    return [card, *cell.all("update_display_data")][-1]["data"]


def test_a_failing_cell_is_an_error_with_the_cells_line(kernel):
    count = kernel.run("1").all("execute_result")[0]["execution_count"] + 1
    cell = kernel.run("%%torchjob\nx = 1\nx / 0")

    assert cell.error["ename"] == "JobFailedError"
    # The card shows the rest.
    assert cell.error["traceback"][-1].endswith(" failed: rank 0: ZeroDivisionError: division by zero")
    drawings = card_of(cell)
    assert set(drawings) == {"text/html", "text/plain"}
    for drawn in drawings.values():
        assert f"Cell In[{count}], line 3\n" in drawn
        assert re.search("----(&gt;|>) 3 x / 0", drawn)


def test_a_function_of_another_cell_is_shown_with_that_cells_line(kernel):
    count = kernel.run("1").all("execute_result")[0]["execution_count"] + 1
    kernel.run("def half(x):\n    return x / 0")
    cell = kernel.run("%%torchjob\nhalf(1)")

    assert f"Cell In[{count}], line 2, in half" in card_of(cell)["text/plain"]


def test_what_python_submits_is_shown_with_the_cells_line_too(kernel):
    count = kernel.run("1").all("execute_result")[0]["execution_count"] + 1
    kernel.run("from nbtorchjob import submit\ndef half(x):\n    return x / 0")
    cell = kernel.run("submit(half, 1).result()")

    assert f"Cell In[{count}], line 3, in half" in "\n".join(cell.error["traceback"])


def test_the_card_is_one_output_that_is_updated(kernel, folder):
    cell = kernel.start(f"%%torchjob\n{GOES_ON}")
    cell.until("update_display_data", "line 1")
    (folder / "stop").touch()
    cell.end()

    (card,) = cell.all("display_data")
    updates = cell.all("update_display_data")
    assert {update["transient"]["display_id"] for update in updates} == {card["transient"]["display_id"]}
    last = updates[-1]["data"]
    assert set(last) == {"text/html", "text/plain"}
    assert " succeeded in " in last["text/plain"].splitlines()[0]
    assert last["text/plain"].endswith(f"value: {cell.value}")
    assert cell.text == ""


def test_an_interrupt_detaches_and_the_job_goes_on(kernel, folder):
    kernel.run("from nbtorchjob.ui.card import view\nview.CANCEL_WITHIN_S = 0.1")
    cell = kernel.start(f"%%torchjob --name left-alone\n{GOES_ON}")
    cell.until("update_display_data", "line 1")
    kernel.interrupt()
    cell.end()

    assert cell.error["ename"] == "Detached"
    assert cell.error["traceback"] == ["Detached from left-alone: %torchjob attach left-alone"]
    assert cell.text.startswith("Stopped waiting; left-alone keeps running.")
    assert nbtorchjob.attach("left-alone").state.phase is not Phase.CANCELLED
    (folder / "stop").touch()
    attached = kernel.run("%torchjob attach left-alone")
    assert int(attached.value) > 0


def test_a_second_interrupt_cancels(kernel):
    kernel.run("from nbtorchjob.ui.card import view\nview.CANCEL_WITHIN_S = 60")
    cell = kernel.start(f"%%torchjob --name given-up\n{GOES_ON}")
    cell.until("update_display_data", "line 1")
    kernel.interrupt()
    cell.until("stream", "Stopped waiting")
    kernel.interrupt()
    cell.end()

    assert cell.error["ename"] == "JobCancelledError"
    job = nbtorchjob.attach("given-up")
    assert job.wait(LIMIT)
    assert job.state.phase is Phase.CANCELLED


def test_a_job_outlives_its_kernel_and_a_new_kernel_has_all_of_it(kernel, folder):
    with started() as doomed:
        doomed.run(f"stop = {str(folder / 'stop')!r}")
        cell = doomed.start(f"%%torchjob --name orphan-job\n{GOES_ON}")
        cell.until("update_display_data", "line 1")
        doomed.kill()
    (folder / "stop").touch()
    attached = kernel.run("%torchjob attach orphan-job")

    count = int(attached.value)
    again = kernel.run("%torchjob attach orphan-job")
    assert again.text == ""
    assert " succeeded in " in again.all("display_data")[-1]["data"]["text/plain"]
    assert kernel.run("%torchjob logs orphan-job").text == "".join(f"line {n}\n" for n in range(count))


def test_two_kernels_can_submit_at_once(kernel):
    with started() as other:
        cells = [client.start("%%torchjob -d\n6 * 7") for client in (kernel, other)]
        for cell in cells:
            cell.end()
        values = [client.run("%torchjob attach").value for client in (kernel, other)]

    assert values == ["42", "42"]


def test_the_tab_key_completes_options_verbs_and_names(kernel):
    kernel.run("%%torchjob --name to-be-completed\n1")

    assert kernel.completions("%%torchjob --nn") == ["--nnodes"]
    assert kernel.completions("%torchjob stat") == ["status"]
    assert kernel.completions("x = 1\n%torchjob attach to-be") == ["to-be-completed"]


def test_help_is_shown(kernel):
    reply = kernel.client.execute_interactive("%%torchjob?", timeout=LIMIT, output_hook=lambda _: None)
    (page,) = [p for p in reply["content"]["payload"] if p["source"] == "page"]

    assert "--nproc-per-node N" in page["data"]["text/plain"]


def test_an_unknown_option_stops_run_all(kernel):
    code = "%%torchjob --nods 2\n1"
    reply = kernel.client.execute_interactive(code, timeout=LIMIT, output_hook=lambda _: None)

    assert reply["content"]["status"] == "error"
    assert reply["content"]["ename"] == "UsageError"


def test_pdb_on_a_rank_from_a_cell(kernel, monkeypatch):
    monkeypatch.setattr(kernel.client, "allow_stdin", True)
    kernel.run("%%torchjob -d --name stops\ndef f(x):\n    breakpoint()\n    return x * 2\nf(21)")
    kernel.run(
        "import time, nbtorchjob\nwhile not nbtorchjob.attach('stops').state.stopped: time.sleep(0.05)"
    )

    def typed(cell, *lines):
        for line in lines:
            request = kernel.client.get_stdin_msg(timeout=LIMIT)["content"]
            assert request["prompt"] in ("ipdb> ", "(Pdb) ")
            kernel.client.input(line)
        return cell

    first = typed(kernel.start("%torchjob debug"), "p x")
    kernel.client.get_stdin_msg(timeout=LIMIT)
    kernel.interrupt()
    assert first.end().text.endswith("21\n")
    assert "<torchjob cell" not in first.text
    assert (
        "rank 0 stays stopped: %torchjob debug stops --rank 0 returns to it" in first.error["traceback"][-1]
    )

    assert "rank 0 has returned" in typed(kernel.start("%torchjob debug stops"), "x = 4", "c").end().text
    assert kernel.run("%torchjob attach stops").value == "8"
    ended = kernel.run("%torchjob debug stops").error
    assert "stops has ended: there is no rank to look at any more" in ended["evalue"]
