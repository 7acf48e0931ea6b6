import builtins
import importlib
import json
import linecache
import sys
from pathlib import Path

import pytest

from nbtorchjob.runtime.facts import LONGEST_FACT
from nbtorchjob.runtime.facts.errors import (
    MAX_FRAMES,
    Error,
    Frame,
    RecoverableError,
    add_notes,
    from_exception,
)
from nbtorchjob.runtime.rank import call


def raised(fn, *args):
    with pytest.raises(Exception) as caught:  # noqa: PT011 whatever the function raises
        fn(*args)
    return caught.value


def inner():
    raise ValueError("no luck")


def outer():
    try:
        inner()
    except ValueError as exc:
        raise KeyError("missing") from exc


def test_an_error_survives_the_wire():
    error = from_exception(raised(outer))

    assert Error.from_json(json.loads(json.dumps(error.to_json()))) == error


def test_a_chain_keeps_its_cause_and_whether_it_was_named():
    error = from_exception(raised(outer))

    assert (error.type, error.message, error.direct) == ("KeyError", "'missing'", True)
    assert error.cause is not None
    assert (error.cause.type, error.cause.frames[-1].line) == ("ValueError", 'raise ValueError("no luck")')


async def waited():
    inner()


@pytest.mark.parametrize(("fn", "frames"), [(inner, ["inner"]), (waited, ["waited", "inner"])])
def test_frames_that_lead_to_the_users_code_are_left_out(fn, frames, monkeypatch):
    for name in ("__main__", "__mp_main__"):
        monkeypatch.setitem(sys.modules, name, sys.modules["__main__"])
    monkeypatch.setattr(sys, "argv", sys.argv)
    exc = raised(call.run, {"function": fn, "args": (), "kwargs": {}, "names": (), "argv": ["f"]})
    exc.__traceback__ = exc.__traceback__.tb_next  # this test's own frame

    assert [frame.name for frame in from_exception(exc).frames] == frames


@pytest.mark.parametrize("source", ["def train():\n    1 / 0\n", "def train(:\n"])
def test_a_shipped_module_is_named_by_its_path_below_the_notebooks_folder(source, tmp_path, monkeypatch):
    (tmp_path / "files" / "deep").mkdir(parents=True)
    (tmp_path / "files" / "deep" / "loop.py").write_text(source)
    monkeypatch.setenv("NBTORCHJOB_FOLDER", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path / "files")
    monkeypatch.delitem(sys.modules, "deep.loop", raising=False)

    frame = from_exception(raised(lambda: importlib.import_module("deep.loop").train())).frames[-1]

    assert (frame.filename, frame.line) == ("deep/loop.py", source.splitlines()[-1].strip())


def test_deep_recursion_keeps_its_first_and_last_frames():
    def deep(n):
        return deep(n - 1) if n else inner()

    error = from_exception(raised(deep, 200))

    assert len(error.frames) == MAX_FRAMES + 1
    assert error.frames[-1].name == "inner"


def test_an_exception_that_can_not_be_printed_is_still_told():
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError

    assert "RuntimeError while printing" in from_exception(Mute()).message


def refuse(self, name=None):
    raise KeyError(name)


class Refusing(type):
    __getattribute__ = refuse


class Incomparable(type):
    __eq__ = refuse
    __hash__ = refuse


@pytest.mark.parametrize("base", [Exception, OSError, SyntaxError, RuntimeError, SystemExit])
@pytest.mark.parametrize(
    ("metaclass", "has"),
    [
        (type, {"__getattribute__": refuse}),
        (type, {"__class__": property(refuse)}),
        (type, {"__notes__": property(refuse)}),
        (type, {"__bool__": refuse}),
        (type, {"__len__": lambda self: 0}),
        (type, {"__module__": 5}),
        (type, {"__cause__": 3, "__context__": 4, "__traceback__": 5}),
        (Refusing, {}),
        (Incomparable, {}),
    ],
)
def test_an_exception_that_raises_when_it_is_asked_is_still_told(base, metaclass, has):
    def fail():
        try:
            raise type.__call__(metaclass, "Own", (base,), {"__module__": "there", **has})("the reason")
        except BaseException as exc:
            raise ValueError from exc

    error = from_exception(raised(fail), retry_on=("OSError",)).cause

    assert error is not None
    assert (error.type, error.message) == ("Own" if has.get("__module__") else "there.Own", "the reason")
    assert error.frames[0].name == "fail"


def test_only_a_recoverable_error_is_recoverable():
    class Mine(RecoverableError):
        pass

    assert from_exception(Mine("x")).recoverable
    assert not from_exception(ValueError("x")).recoverable


@pytest.mark.parametrize(
    ("name", "recoverable"),
    [
        ("ConnectionRefusedError", True),
        ("OSError", True),
        ("builtins.OSError", True),
        ("socket.error", True),
        ("ValueError", False),
        ("os.OSError", False),
    ],
)
def test_an_exception_named_by_retry_on_is_recoverable_and_so_are_those_derived_from_it(name, recoverable):
    assert from_exception(ConnectionRefusedError(), retry_on=(name,)).recoverable is recoverable


@pytest.mark.parametrize(
    ("kind", "message", "lost"),
    [
        ("RuntimeError", "[/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]", True),
        ("torch.distributed.DistBackendError", "NCCL error: ncclRemoteError: a remote process exited", True),
        ("torch.distributed.DistNetworkError", "Connection was reset", True),
        ("torch.distributed.DistBackendError", "ncclInvalidUsage: Duplicate GPU detected", False),
        ("RuntimeError", "[/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 100ms", False),
        ("ConnectionResetError", "[Errno 104] Connection reset by peer", False),
        ("RuntimeError", "shapes differ", False),
    ],
)
def test_a_lost_peer_is_told_from_ones_own_fault(kind, message, lost):
    assert Error(kind, message).lost_peer is lost


def test_an_error_of_another_version_is_read():
    frame = {"filename": "a", "lineno": 1, "name": "f"}
    later = {**frame, "variables": [["x", "1"]], "later": 1}

    error = Error.from_json({"type": "T", "message": "m", "frames": [frame, later], "time": 0.0})

    assert error.frames == (Frame("a", 1, "f"), Frame("a", 1, "f", variables=(("x", "1"),)))


def test_an_error_of_a_later_version_is_read():
    assert Error.from_json({"type": "T", "message": "m", "later": 1, "time": 0.0}) == Error(
        "T", "m", time=0.0
    )


@pytest.mark.parametrize(
    ("details", "frame"),
    [
        ((Path("a.cfg"), 3, 1, "text"), Frame("a.cfg", 3, "<module>", "text")),
        ((b"a.cfg", 3, 1, "text"), Frame("a.cfg", 3, "<module>", "text")),
        (("a.cfg", "3", 1, 5), Frame("a.cfg", 0, "<module>", "")),
    ],
)
def test_a_syntax_error_that_was_made_by_hand_is_told_as_any_other(details, frame):
    error = from_exception(SyntaxError("bad", details))

    assert error.frames == (frame,)
    assert Error.from_json(json.loads(json.dumps(error.to_json()))) == error


def test_a_failure_on_a_line_with_a_long_literal_fits_into_a_fact():
    text = "[][len('%s')]\n" % ("1" * (2 * LONGEST_FACT))
    linecache.cache["<long>"] = (len(text), None, [text], "<long>")
    with pytest.raises(IndexError) as caught:
        exec(compile(text, "<long>", "exec"))

    error = from_exception(caught.value)

    assert error.frames[-1].line.startswith("[][len('111")
    assert len(json.dumps(error.to_json())) < LONGEST_FACT // 8


@pytest.mark.parametrize("character", ["漢", "😀", "\x1b"])
def test_a_failure_with_long_texts_in_any_script_fits_into_a_fact(character):
    error = RuntimeError("first")
    for _ in range(9):
        behind, error = error, RuntimeError("shape: " + character * 20_000)
        error.__cause__ = behind
        add_notes(error, [character * 20_000] * 16)

    data = json.dumps(from_exception(error).to_json())

    assert len(data) < 3 * LONGEST_FACT // 4
    whole = Error.from_json(json.loads(data))
    assert whole.message.startswith("shape: " + character * 100)
    assert len(whole.notes) == 16


def test_a_long_message_is_whole_while_it_fits_into_a_fact():
    assert from_exception(ValueError("漢" * 16_000)).message == "漢" * 16_000


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has groups from 3.11 on")
def test_a_group_is_described_with_its_first_member_and_recoverable_if_all_are():
    group = vars(builtins)["ExceptionGroup"]
    error = from_exception(group("two", [RecoverableError("away"), RecoverableError("late")]))
    assert error.cause is not None
    assert (error.recoverable, error.member, error.cause.message) == (True, True, "away")

    mixed = from_exception(group("two", [RecoverableError(), ValueError("wrong")]))
    assert not mixed.recoverable
    nested = group("outer", [group("inner", [KeyError("a")]), KeyError("b")])
    assert from_exception(nested, retry_on=["KeyError"]).recoverable
