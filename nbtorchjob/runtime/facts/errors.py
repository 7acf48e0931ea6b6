"""An exception on a rank, as data: what is sent to the client in place of the exception itself.

A pickled exception would need its class on the client and run code there; the text of its frames doesn't.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import linecache
import os
import re
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field, replace
from types import FrameType, TracebackType
from typing import Any, List, Optional, Sequence, Tuple

from nbtorchjob.runtime.facts import LONGEST_FACT
from nbtorchjob.runtime.facts.injected import FOLDER, SHIPPED

# A traceback through deep recursion is cut to its first and last frames, as Python does when printing it.
MAX_FRAMES = 60
MAX_MESSAGE = 16_384
MAX_NOTES = 16
MAX_LINE = 500  # characters of a source line, which may hold a literal of any length
MAX_VARIABLES = 1 << 16  # characters of all frames' variables, including those of the exceptions behind it

# An exception's class may be a user's, and reading any attribute may run that class's code. If that raised,
# the failure would be lost. So what every exception has is read through Python's own slots.
_mro = type.__dict__["__mro__"].__get__
_name = type.__dict__["__name__"].__get__
_qualname = type.__dict__["__qualname__"].__get__
_module = type.__dict__["__module__"].__get__
_cause = BaseException.__dict__["__cause__"].__get__
_context = BaseException.__dict__["__context__"].__get__
_suppress_context = BaseException.__dict__["__suppress_context__"].__get__
traceback_of = BaseException.__dict__["__traceback__"].__get__
_exit_code = SystemExit.__dict__["code"].__get__
# A group's members (Python 3.11)
_GROUP: Any = getattr(builtins, "BaseExceptionGroup", None)
_members = _GROUP.__dict__["exceptions"].__get__ if _GROUP is not None else None
_OF_SYNTAX = [SyntaxError.__dict__[name].__get__ for name in ("filename", "lineno", "text")]

# What collectives raise when a peer is gone: c10d's own types, and gloo's RuntimeError.
_LOST_PEER_TYPES = ("DistBackendError", "DistNetworkError", "DistStoreError")
_LOST_PEER_TEXTS = ("closed by peer", "reset by peer", "Broken pipe", "/gloo/transport/")
# The same types, but the fault is this rank's: retrying as if a node had been lost would never end.
_OWN_FAULTS = ("ncclInvalidUsage", "ncclInvalidArgument", "ncclUnhandledCudaError", "Timed out waiting")
# What they say when their time is over: gloo, and NCCL's watchdog.
TIMED_OUT = r"collective operation timeout|Timed out waiting \d+ms for"


class RecoverableError(Exception):
    """Raise this on a rank to request another try: it counts against ``max_restarts``, then ``retries``.

    The meaning is that of flytekit's ``FlyteRecoverableException``.
    """

    __module__ = "nbtorchjob"  # where users import it from, on a rank too


@dataclass(frozen=True)
class Frame:
    """One frame of a traceback; ``line`` is the source line if the node had it.

    ``variables`` are names and descriptions of values (``described``), for some frames of a rank.
    """

    filename: str
    lineno: int
    name: str
    line: str = ""
    variables: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Frame:
        """Rebuild a frame from its dict; unknown keys of a later version are dropped."""
        fields = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        fields["variables"] = tuple((name, text) for name, text in data.get("variables", ()))
        return cls(**fields)


@dataclass(frozen=True)
class Error:
    """An exception: its type, message, frames (outermost first) and the exceptions behind it."""

    type: str
    message: str
    frames: tuple[Frame, ...] = ()
    notes: tuple[str, ...] = ()
    cause: Error | None = None
    direct: bool = True  # `cause` was given with "raise … from", not merely being handled
    member: bool = False  # `cause` is the first exception of this group
    recoverable: bool = False
    time: float = field(default_factory=time.time)  # seconds since the epoch, on the node's clock

    def to_json(self) -> dict[str, Any]:
        """Return what :meth:`from_json` takes."""
        return asdict(self)

    @property
    def variables_size(self) -> int:
        """Total length of its frames' variables in characters, including the exceptions behind it."""
        pairs = (pair for frame in self.frames for pair in frame.variables)
        return sum(map(len, (text for pair in pairs for text in pair))) + (
            self.cause.variables_size if self.cause is not None else 0
        )

    def bare(self) -> Error:
        """Return this error without variables."""
        frames = tuple(replace(frame, variables=()) for frame in self.frames)
        return replace(self, frames=frames, cause=self.cause.bare() if self.cause is not None else None)

    @property
    def lost_peer(self) -> bool:
        """Whether it only says that another rank is gone, as collectives do."""
        if any(text in self.message for text in _OWN_FAULTS):
            return False
        # A ConnectionResetError of the user's code has the same text, but isn't a RuntimeError.
        gloo = self.type == "RuntimeError" and any(text in self.message for text in _LOST_PEER_TEXTS)
        return gloo or self.type.rpartition(".")[2] in _LOST_PEER_TYPES

    @property
    def timed_out(self) -> bool:
        """Whether it says that a collective timed out."""
        return re.search(TIMED_OUT, self.message) is not None

    @property
    def collective(self) -> bool:
        """Whether a collective failed, as another rank is gone or never came."""
        return self.lost_peer or self.timed_out

    @property
    def again(self) -> bool:
        """Whether another try may end differently: it is recoverable, or a rank hung for unknown reasons."""
        return self.recoverable or self.timed_out

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Error:
        """Rebuild an error from :meth:`to_json`'s dict; unknown keys of a later version are dropped."""
        fields = {k: v for k, v in data.items() if k in cls.__dataclass_fields__}
        fields["frames"] = tuple(map(Frame.from_json, data.get("frames", ())))
        fields["notes"] = tuple(data.get("notes", ()))
        fields["cause"] = cls.from_json(data["cause"]) if data.get("cause") else None
        return cls(**fields)


def from_exception(
    exc: BaseException, *, retry_on: Sequence[str] = (), depth: int = 0, most: int = MAX_MESSAGE
) -> Error:
    """Describe ``exc``, leaving out the frames of this runtime, with texts of at most ``most`` characters.

    It is recoverable if it is a :class:`RecoverableError` or of a type that ``retry_on`` names.
    """
    cause = behind(exc)
    error = Error(
        type=type_name(type(exc)),
        message=bounded(text_of(exc), most),
        frames=tuple(frame for frame, _ in traced(exc)),
        notes=tuple(bounded(note, most) for note in _notes(exc)[:MAX_NOTES] if isinstance(note, str)),
        cause=from_exception(cause, depth=depth + 1, most=most) if cause is not None and depth < 8 else None,
        direct=_cause(exc) is not None,
        member=any(member is cause for member in members(exc)),
        recoverable=_recoverable(exc, retry_on),
    )
    # JSON writes up to 12 bytes for a character. Half of a fact is left for variables.
    if most and not depth and len(json.dumps(error.to_json())) > LONGEST_FACT // 2:
        return from_exception(exc, retry_on=retry_on, most=most // 2)
    return error


def _recoverable(exc: BaseException, retry_on: Sequence[str]) -> bool:
    if is_a(exc, RecoverableError) or named(exc, retry_on):
        return True
    inner = members(exc)
    return bool(inner) and all(_recoverable(member, retry_on) for member in inner)


def members(exc: BaseException) -> Sequence[BaseException]:
    """Return the exceptions in a group, such as that of an ``asyncio.TaskGroup``; none for any other."""
    return _members(exc) if _members is not None and is_a(exc, _GROUP) else ()


def text_of(value: Any) -> str:
    """Return the text of an exception, or of a value in one; its ``__str__`` may raise."""
    try:
        return str(value)
    except (Exception, SystemExit) as broken:
        return "<%s while printing the exception>" % _qualname(type(broken))


def type_name(type_: type) -> str:
    """Return a type's name, with its module unless that is the notebook or Python itself."""
    module, name = _module(type_), _qualname(type_)
    plain = not isinstance(module, str) or module in ("builtins", "__main__", "__mp_main__")
    return name if plain else "%s.%s" % (module, name)


def is_a(exc: BaseException, *types: type) -> bool:
    """Like ``isinstance``, but without asking for the exception's ``__class__`` or a metaclass's ``==``."""
    return any(base is type_ for base in _mro(type(exc)) for type_ in types)


def exit_code(exc: BaseException) -> Any:
    """Return what was passed to ``sys.exit``; None for any other exception."""
    return _exit_code(exc) if is_a(exc, SystemExit) else None


def behind(exc: BaseException) -> Optional[BaseException]:
    """Return the exception that caused this one, or that was being handled; else a group's first member."""
    cause: Optional[BaseException] = _cause(exc)
    if cause is not None:  # its class may define ``__bool__``
        return cause
    context: Optional[BaseException] = None if _suppress_context(exc) else _context(exc)
    return context if context is not None else next(iter(members(exc)), None)


def add_notes(exc: BaseException, notes: Sequence[str]) -> None:
    """Do what ``add_note`` does from Python 3.11 on, if the exception's class allows it."""
    with contextlib.suppress(Exception):
        exc.__notes__ = [*_notes(exc), *notes]  # type: ignore[attr-defined]


def _notes(exc: BaseException) -> Sequence[Any]:
    try:
        notes = getattr(exc, "__notes__", ())
    except Exception:
        return ()
    return notes if isinstance(notes, (list, tuple)) else ()  # whatever the user's code put there


def named(exc: BaseException, names: Sequence[str]) -> bool:
    """Whether one of ``names``, with or without module, is the exception's type or one of its bases."""
    for name in names:
        module, _, attribute = name.rpartition(".")
        # Libraries export a type under other names than its own, like torch.cuda.OutOfMemoryError.
        exported = getattr(sys.modules.get(module), attribute, None)
        for type_ in _mro(type(exc)):
            own = (_name(type_), "%s.%s" % (_module(type_), _qualname(type_)))
            if type_ is exported or name in own:
                return True
    return False


def users_traceback(exc: BaseException) -> Optional[TracebackType]:
    """Return the traceback from the first frame on that doesn't belong to this runtime or its event loop."""
    entry: Optional[TracebackType] = traceback_of(exc)
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith((HERE, _ASYNCIO)):
        entry = entry.tb_next
    return entry


def users_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """Return a rank's stack, outermost frame first, from where this runtime calls the user's code.

    If it hasn't called any, the stack starts where the rank begins, as a rank is forked from within its node.
    """
    begins = [number for number, frame in enumerate(frames) if frame.filename == HERE + "rank/worker.py"]
    first = begins[-1] if begins else len(frames)
    last = first
    while last < len(frames) and frames[last].filename.startswith((HERE, _ASYNCIO)):
        last += 1
    return tuple(frames[last:] or frames[first:] or frames)


def bounded(text: str, most: int = MAX_MESSAGE) -> str:
    """Return a text, cut if it has more than ``most`` characters."""
    return text if len(text) <= most else text[:most] + " […]"


def traced(exc: BaseException) -> List[Tuple[Frame, Optional[FrameType]]]:
    """Return the frames of an exception, outermost first, each with the live frame that it describes."""
    users = users_traceback(exc)
    living = [frame for frame, _ in traceback.walk_tb(users)]
    frames: List[Tuple[Frame, Optional[FrameType]]] = [
        (Frame(_at_home(entry.filename), entry.lineno or 0, entry.name, (entry.line or "")[:MAX_LINE]), frame)
        for entry, frame in zip(traceback.extract_tb(users), living)
    ]
    # Code that raises a SyntaxError itself, as parsers of other languages do, may give anything.
    where, lineno, line = [part(exc) for part in _OF_SYNTAX] if is_a(exc, SyntaxError) else ("", 0, "")
    if where:
        filename = os.fsdecode(where) if isinstance(where, (bytes, os.PathLike)) else text_of(where)
        lineno = lineno if isinstance(lineno, int) else 0
        line = line if isinstance(line, str) and line else linecache.getline(filename, lineno)
        frames.append((Frame(_at_home(filename), lineno, "<module>", line.strip()[:MAX_LINE]), None))
    kept = shortened([frame for frame, _ in frames])
    if len(kept) == len(frames):
        return frames
    half = len(kept) // 2
    return [*frames[:half], (kept[half], None), *frames[-half:]]


def _at_home(filename: str) -> str:
    """Return a shipped file's path below the notebook's folder: editing the node's copy changes nothing."""
    shipped = os.path.join(os.environ.get(FOLDER, os.devnull), SHIPPED, "")
    return filename[len(shipped) :] if filename.startswith(shipped) else filename


def shortened(frames: Sequence[Frame], most: int = MAX_FRAMES) -> tuple[Frame, ...]:
    """Return only the first and the last of the frames if there are too many."""
    if len(frames) <= most:
        return tuple(frames)
    half = most // 2
    return (*frames[:half], Frame("", 0, "… %d frames …" % (len(frames) - 2 * half)), *frames[-half:])


_ASYNCIO = os.path.join(os.path.dirname(os.__file__), "asyncio", "")
# The path at compile time: in a payload that isn't where the file is.
HERE = from_exception.__code__.co_filename.rpartition("facts/errors.py")[0]
