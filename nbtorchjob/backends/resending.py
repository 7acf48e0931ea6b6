"""Sends a job of a pool again, from any follower on a machine that has what was sent.

The nodes' copy of the payload may be lost with them, so it is kept in a private folder until the job ends.
Any process that follows the job takes it from there, even if its sender was killed. The job's record, with
its budgets and earlier attempts, stays after its end: the pool knows nothing of them.

    how an attempt ended                            what follows
    ----------------------------------------------  -----------------------------------------------------
    badly, and a budget pays for another one        that attempt, after its pause, once the pool has ranks
    the pool lost its ranks before the job began    the same attempt, as soon as the pool has ranks
    with the pool                                   nothing

Each time, the job has another id (``turns.again``). A lead accepts each id once, and a sender holds a lock
and records that it sent the job, so no attempt runs twice. A process that can't send it, or comes second,
goes on with what was sent. A cancelled job is marked, so that no process sends it again. A job without a
follower when its pool lost its ranks may have begun before, so it is sent again only if a budget pays for it.

Each follower leaves a mark beside the job. One that starts after a loss doesn't know whether the job had
begun, so it waits for the decision of those that saw it. Jobs keep their order: those with a lower number and
a mark that the pool's new ranks haven't got yet are sent first. A job that pauses before its next attempt
holds up no other job. The lead sorts waiting jobs by their numbers.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from nbtorchjob.errors import DamagedError, NBTorchJobError
from nbtorchjob.machine.folders import own, state_dir
from nbtorchjob.machine.processes import Lock, locked
from nbtorchjob.state import JobInfo, JobState, apply, turns
from nbtorchjob.state.facts.events import (
    ArtifactsReady,
    AttemptBegan,
    AttemptPaid,
    CancelRequested,
    Closed,
    Event,
    LogChunk,
    NodeStarted,
    Notice,
    TurnTaken,
    Verdict,
)
from nbtorchjob.state.facts.factlines import from_json, to_json
from nbtorchjob.state.info import MARK, read, write
from nbtorchjob.state.turns import View

_LOOK_S = 0.1
_FOLDER = "pools"  # in the state folder: below it one for each pool, and there one for each of its jobs
_RECORD = "sent.json"
_WRITTEN = frozenset(("question", "times", "round", "attempt", "past"))
_PAYLOAD = "payload"
_INFO = "info.json"
_CANCELLED = "cancelled"
_LOG = logging.getLogger("nbtorchjob.tending")  # like a tender's messages
_KEPT_S = 14 * 24 * 3600.0
_BY = "by-"  # prefix of the file that is locked while a follower lives, and of its marks beside jobs
_SEEN = ".seen"  # suffix of the mark of a process that has followed the job since the lead took it
_MOST_TOLD = 256  # earlier attempts that the lead reports
_MOST_WHY = 300  # characters of why one of them ended
# How long a job waits for those before it, once its pool is seen to have new ranks; and how long a process
# waits for others that know better what was lost.
_PATIENCE_S = 30.0


class OutOfTurnError(Exception):
    """Another job, which was sent earlier, has to be sent to its pool again first."""


class SendMoment(NamedTuple):
    """The moment at which something is sent to a lab: a mark in the lab's facts, or a listener."""

    mark: int | None
    listener: Any  # a ``turns.Listener``, or None

    def forget(self) -> None:
        """Stop listening to the lab, unless the listener has a reader."""
        if self.listener is not None and self.listener.take():
            self.listener.close()


class TakenTurn(NamedTuple):
    """A turn when its lead took it: the lab's state before that, the turn's round, and a moment before it.

    ``unseen`` says that it is unknown here what the turn did before its lab's ranks began anew.
    """

    lab: JobState
    round: int
    since: SendMoment
    unseen: bool = False

    @classmethod
    def elsewhere(cls, lab: JobState, round_: int) -> TakenTurn:
        """Return a turn that another process has sent."""
        turn = next((turn for turn in reversed(lab.turns) if turn.round == round_), None)
        unseen = turn is None or turn.base != lab.round or turns.lead(lab) is None
        return cls(lab, round_, SendMoment(None, None), unseen)


class ResendFolder:
    """The private folder of this user with everything that it takes to send a job of a pool again.

    ``record`` holds the question that brought the job (without an id), how often it was sent, the newest
    round that it got, its attempt, and the facts of earlier attempts. Once the job is over, its ``end`` holds
    the facts that say why it was not sent again, if it should have been.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @classmethod
    def create(
        cls, info: JobInfo, pool: str, id_: str, data: memoryview, record: Mapping[str, Any]
    ) -> ResendFolder:
        """Keep a job of the pool with that ``JobInfo.run``; remove what was kept more than two weeks ago.

        Raises ``OSError``, and ``NotOwnError``.
        """
        folder = own(own(own(state_dir() / _FOLDER) / pool) / id_)
        for process in folder.parent.glob(f"{_BY}*"):
            _lives(process)
        pools = folder.parent.parent
        # A kernel that was killed meanwhile left no record.
        halves = (half for half in pools.glob(f"*/*/{_PAYLOAD}") if not half.with_name(_RECORD).exists())
        for old in chain(pools.glob(f"*/*/{_RECORD}"), halves):
            with suppress(FileNotFoundError):
                if old.stat().st_mtime < time.time() - _KEPT_S:
                    shutil.rmtree(old.parent, ignore_errors=True)
        kept = cls(folder)
        for name, content in ((_PAYLOAD, data), (_INFO, write(info).encode())):
            with open(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                file.write(content)
        kept.note(record)
        return kept

    @classmethod
    def of(cls, pool: str, id_: str, address: str) -> tuple[ResendFolder, JobInfo] | None:
        """Return what is kept of the job that was sent with that id; None if nothing is."""
        if {pool, id_} & {"", ".", ".."} or any("/" in name for name in (pool, id_)):
            return None  # both are facts, which code in the pool's pods may have made up
        folder = state_dir() / _FOLDER / pool / id_
        with suppress(OSError, DamagedError):
            info = read((folder / _INFO).read_bytes(), "kubernetes", address)
            if (folder / _RECORD).exists():
                return cls(folder), info
        return None

    @property
    def record(self) -> dict[str, Any]:
        """The record that was written last; raises ``OSError`` if it is missing or damaged.

        After a power failure, not every file system has the content of a renamed file.
        """
        content = (self._folder / _RECORD).read_bytes()
        with suppress(ValueError):
            record = json.loads(content)
            if isinstance(record, dict) and record.keys() >= _WRITTEN:
                return record
        raise OSError(errno.EIO, "its record is damaged", str(self._folder / _RECORD))

    @property
    def number(self) -> int:
        """The job's number among its pool's jobs; 0 if its sender gave it none. Raises ``OSError``."""
        return int(self.record["question"].get("number", 0))

    @property
    def payload(self) -> bytes:
        """The payload that was sent; raises ``OSError`` once the job is over."""
        return (self._folder / _PAYLOAD).read_bytes()

    def note(self, record: Mapping[str, Any]) -> None:
        """Write a new record."""
        partial = self._folder / f"{_RECORD}.{os.getpid()}"
        partial.write_text(json.dumps(record))
        partial.replace(self._folder / _RECORD)

    @contextmanager
    def locked(self, *, wait: bool = True) -> Iterator[None]:
        """Be the only process that sends the job; if another one is, ``wait`` for it or raise ``OSError``."""
        with locked(self._folder / "lock", wait=wait):
            yield

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled."""
        return (self._folder / _CANCELLED).exists()

    def cancel(self) -> None:
        """Keep every process from sending the job again."""
        with suppress(OSError):
            (self._folder / _CANCELLED).touch()

    def followed(self, *, seen: bool) -> Path:
        """Mark that this process sends it again if need be; return the mark, to be removed by the caller.

        Raises ``OSError``.
        """
        mark = self._folder / f"{_me(self._folder.parent)}.{secrets.token_hex(4)}{_SEEN if seen else ''}"
        mark.touch()
        return mark

    def seen(self, marks: Collection[Path]) -> bool:
        """Whether a process follows it that has done so since it was taken; these ``marks`` don't count."""
        others = {*self._folder.glob(f"{_BY}*{_SEEN}")} - {*marks}
        return any(_lives(self._folder.parent / mark.name.partition(".")[0]) for mark in others)

    def comes(self, base: int) -> int | None:
        """Return its number if the ranks that began in ``base`` are about to get it, None if they have it.

        Returns 0 if no process is sending it now.
        """
        with suppress(OSError):
            record = self.record
            if record["round"] >= base:
                return None
            marks = self._folder.glob(f"{_BY}*") if record.get("due", 0.0) <= time.time() else ()
            if any(_lives(self._folder.parent / mark.name.partition(".")[0]) for mark in marks):
                return self.number
        return 0

    def over(self, round_: int, end: Sequence[Event]) -> None:
        """Keep only the record, with that end, unless the job was sent again after that round."""
        with suppress(OSError), self.locked(wait=False):
            record = self.record
            if record["round"] == round_ and "end" not in record:
                self.note({**record, "end": [to_json(fact) for fact in end]})
                (self._folder / _PAYLOAD).unlink(missing_ok=True)


def unfinished() -> Iterator[JobInfo]:
    """Yield the jobs of pools that were sent from this machine and that no process here has seen to be over.

    They are sorted by their numbers: followed in another order, a later job could be sent again before an
    earlier one has its mark.
    """
    numbered: list[tuple[int, Path]] = []
    for payload in (state_dir() / _FOLDER).glob(f"*/*/{_PAYLOAD}"):
        with suppress(OSError):
            numbered.append((ResendFolder(payload.parent).number, payload.parent))
    for _, folder in sorted(numbered):
        with suppress(OSError, DamagedError):
            yield read((folder / _INFO).read_bytes(), "kubernetes", folder.name)


_names: dict[Path, str] = {}  # the name of this process's file beside a pool's jobs, by the pool's folder


def _me(pool: Path) -> str:
    """Return the name of a file that is locked for as long as this process lives.

    A process id wouldn't show whether it lives: macOS, which can also send jobs to clusters, has no /proc.
    """
    if pool not in _names:
        name = f"{_BY}{secrets.token_hex(8)}"
        Lock(pool / f".{name}").take()  # for as long as this process lives
        os.register_at_fork(after_in_child=partial(_names.pop, pool, None))
        os.rename(pool / f".{name}", pool / name)
        _names[pool] = name
    return _names[pool]


def _lives(process: Path) -> bool:
    """Whether the process with that file lives; removes the file if not."""
    try:
        with open(process, "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    process.unlink(missing_ok=True)
    return False


@dataclass
class _Line:
    """The jobs to be sent to a pool's ranks that began in ``base``, as far as this process knows."""

    base: int
    since: float  # when this process first asked
    sent: set[Path] = field(default_factory=set)  # folders of jobs that these ranks have got
    first: Path | None = None  # the folder of the job with the lowest number that was to come


_lines: dict[str, _Line] = {}  # by pool


def is_behind(pool: str, number: int, base: int) -> bool:
    """Whether a job of that pool with a lower number goes first; False once waiting has taken too long."""
    line = _lines.get(pool)
    if line is None or line.base < base:
        line = _lines[pool] = _Line(base, time.monotonic())
    if not number or time.monotonic() > line.since + _PATIENCE_S:
        return False
    # Hundreds may ask.
    if line.first is not None and ResendFolder(line.first).comes(base) in range(1, number):
        return True
    coming: dict[int, Path] = {}
    for payload in (state_dir() / _FOLDER / pool).glob(f"*/{_PAYLOAD}"):
        if (folder := payload.parent) in line.sent:
            continue
        other = ResendFolder(folder).comes(base)
        if other is None:
            line.sent.add(folder)
        elif other:
            coming[other] = folder
    lowest = min(coming, default=number)
    line.first = coming.get(lowest)
    return lowest < number


class Plan(NamedTuple):
    """The attempt that follows, and when; ``others_decide``: processes that saw the lost one decide."""

    attempt: int
    at: float
    others_decide: bool = False


class SentTurn:
    """A turn that was sent, with its newest ``acceptance``.

    ``again`` sends a job of a pool once more, given the number of that sending and what its lead is to report
    of its attempts. Without ``again``, another process with access to ``kept`` may do so. A job that was sent
    ``elsewhere``, as its lead reported, may be sent again only there. ``past`` are earlier attempts' facts.
    """

    def __init__(
        self,
        info: JobInfo,
        acceptance: TakenTurn,
        again: Callable[[int, Mapping[str, Any]], TakenTurn] | None = None,
        kept: ResendFolder | None = None,
        *,
        elsewhere: TurnTaken | None = None,
    ) -> None:
        self.info = info
        self.acceptance = acceptance
        self.attempt = 1
        self.past: tuple[Event, ...] = ()
        self._again = again
        self._kept = kept
        self._times = 1
        self._recorded = 0  # the round of the newest record that was read here
        self._problem = ""
        self._cancelled = False
        self._overdue: TakenTurn | None = None  # the attempt whose loss others have had enough time to handle
        self.elsewhere = elsewhere is not None
        self._over = again is None and kept is None and elsewhere is None
        self._end: tuple[Event, ...] = ()
        self._sending: asyncio.Future[None] | None = None
        self._marks: set[Path] = set()
        if kept is not None:
            with suppress(OSError):
                self._take_up(kept.record)
        if elsewhere is not None:
            self._hear(elsewhere)

    @property
    def others(self) -> str:
        """What the job waits for while other processes are to send it again."""
        if self.elsewhere:
            return "it waits to be sent to its pool again from the machine that sent it"
        return "it is being sent to its pool again"

    @property
    def may_go_on(self) -> bool:
        """Whether another attempt may follow."""
        return not self._over

    def take_up(
        self, send: Callable[[Mapping[str, Any], memoryview, int, Mapping[str, Any]], TakenTurn]
    ) -> None:
        """Have this process send it again if need be, although another one sent it first.

        ``send`` does so; its first two arguments are the question and the payload that brought the job.
        """
        if self._kept is not None and self._again is None and not self._over:
            with suppress(OSError):
                self._again = partial(send, self._kept.record["question"], memoryview(self._kept.payload))

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled."""
        return self._cancelled or (self._kept is not None and self._kept.cancelled)

    @contextmanager
    def followed(self) -> Iterator[None]:
        """Meanwhile let it go before jobs that were sent later, if this process can send it again."""
        mark = None
        with suppress(OSError):
            if self._kept is not None and self._again is not None:
                mark = self._kept.followed(seen=not self.acceptance.unseen)
                self._marks.add(mark)
        try:
            yield
        finally:
            if mark is not None:
                self._marks.discard(mark)
                with suppress(OSError):
                    mark.unlink()

    def cancel(self) -> None:
        """Keep every process from sending the job again."""
        self._cancelled = True
        if self._kept is not None:
            self._kept.cancel()

    def view(self, key: str) -> View:
        """Return the view of its newest attempt, which has that key."""
        lab, round_, since, unseen = self.acceptance
        return View(lab, key, round_, since.mark, unseen=unseen)

    def plan(self, facts: Sequence[Event]) -> Plan | None:
        """Return the plan that follows from an attempt's facts; None if there is no further attempt."""
        return self._planned(facts) if not self.cancelled else None

    def given_up(self, facts: Sequence[Event]) -> bool:
        """Whether another attempt would have followed, had the job not been cancelled."""
        return self.cancelled and self._planned(facts) is not None

    def _planned(self, facts: Sequence[Event]) -> Plan | None:
        verdicts = {fact.reason: fact for fact in facts if isinstance(fact, Verdict)}
        if self._over or self._problem or not verdicts or turns.UNREAD in verdicts:
            return None
        lost = verdicts.get(turns.ANEW)
        if lost is not None and lost.text == turns.POOL_GONE_BEFORE:
            return Plan(self.attempt, min(lost.time, time.time()))  # pods have clocks of their own
        if lost is not None and self._is_theirs:
            return Plan(self.attempt, lost.time, others_decide=True)
        state = reduce(apply, unclosed([*self.past, *facts]), JobState(self.info))
        return Plan(state.next.number, state.next.at) if state.next is not None else None

    @property
    def _is_theirs(self) -> bool:
        """Whether other processes know better what was lost."""
        if self._overdue is self.acceptance or self._kept is None or not self.acceptance.unseen:
            return False
        return self._kept.seen(self._marks)

    def renew(self, lab: Callable[[], JobState]) -> None:
        """Go on with what another process has sent since; ``lab`` returns the pool's state."""
        if self.elsewhere:
            turn = turns.find(state := lab(), self.info.address.rpartition(MARK)[2])
            if turn is not None and turn.fact.round != self.acceptance.round:
                self.acceptance = TakenTurn.elsewhere(state, turn.fact.round)
                self._hear(turn.fact)
        with suppress(OSError):
            # What was read first, of the record and of the pool's state, may be older.
            if self._kept is not None and not (self._over and self.acceptance.round == self._recorded):
                self._renew(self._kept.record, self.acceptance, lab)

    def _renew(self, record: Mapping[str, Any], acceptance: TakenTurn, lab: Callable[[], JobState]) -> bool:
        """Take over what another process has recorded since: that it sent the job, or found it to be over."""
        sent = record["round"] != acceptance.round
        if sent or "end" in record or record["round"] != self._recorded:
            before = lab()
            self._take_up(record)
            self.acceptance = TakenTurn.elsewhere(before, record["round"]) if sent else self.acceptance
        return sent or "end" in record

    async def go_on(
        self, lost: TakenTurn, plan: Plan, facts: Sequence[Event], lab: Callable[[], JobState]
    ) -> bool:
        """Have the attempt that follows ``lost`` sent; return whether it was.

        ``facts`` are those of the lost attempt, and ``lab`` returns the pool's state, for which it may have
        to wait.
        """
        if self.acceptance is lost and not self._problem:
            if self._sending is None:
                self._sending = asyncio.ensure_future(self._send(lost, plan, facts, lab))
            await asyncio.shield(self._sending)
        return self.acceptance is not lost

    async def _send(
        self, lost: TakenTurn, plan: Plan, facts: Sequence[Event], lab: Callable[[], JobState]
    ) -> None:
        began = time.monotonic()
        try:
            if self._kept is not None and plan.at > time.time():
                await asyncio.to_thread(self._pause, self._kept, lost, plan)
            while not self._over and not self.cancelled:
                await asyncio.to_thread(self.renew, lab)
                if self.acceptance is not lost:
                    return
                state = await asyncio.to_thread(lab)
                if self.elsewhere and state.phase.terminal:
                    return
                if plan.others_decide:
                    # A process that is stopped, as by Ctrl-Z, lives but does nothing.
                    if time.monotonic() > began + _PATIENCE_S:
                        self._overdue = lost
                    if not self._is_theirs:
                        return
                elif (
                    time.time() >= plan.at
                    and self._again is not None
                    # Asking the pool is only of use if it has ranks, or never will again.
                    and (turns.lead(state) is not None or state.phase.terminal)
                    and not await asyncio.to_thread(self._is_behind, state)
                ):
                    with suppress(OutOfTurnError):
                        await asyncio.to_thread(self._send_now, lost, plan, facts, lab)
                        return
                await asyncio.sleep(_LOOK_S)
        except NBTorchJobError as exc:
            self._problem = str(exc)
        finally:
            self._sending = None

    def _is_behind(self, lab: JobState) -> bool:
        """Whether other jobs go first; checked again when the job is sent."""
        with suppress(OSError):
            if self._kept is not None:
                return is_behind(lab.info.run, self._kept.number, lab.round)
        return False

    def _pause(self, kept: ResendFolder, lost: TakenTurn, plan: Plan) -> None:
        """Record for other processes that it isn't sent before ``plan.at``."""
        with suppress(OSError), kept.locked():
            if (record := kept.record)["round"] == lost.round:
                kept.note({**record, "due": plan.at})

    def _send_now(
        self, lost: TakenTurn, plan: Plan, facts: Sequence[Event], lab: Callable[[], JobState]
    ) -> None:
        """Send it, unless another process has; raise ``OutOfTurnError`` if other jobs go first."""
        again, attempt = self._again, plan.attempt
        if again is None or self._over or self.cancelled:  # another follower may have found it to be over
            return
        began = [AttemptBegan(time.time(), attempt)] if attempt > self.attempt else []
        # An attempt that never began leaves no facts.
        past = (*self.past, *unclosed(facts), *began) if began else self.past
        attempts = _attempts(self.info, attempt, past)
        if self._kept is None:
            self.acceptance = again(self._times + 1, attempts)
            self._times, self.attempt, self.past = self._times + 1, attempt, past
            return
        try:
            with self._kept.locked():
                record = self._kept.record
                if self._renew(record, lost, lab):
                    return
                times = record["times"] + 1
                sent_turn = again(times, attempts)
                kept = [to_json(fact) for fact in past if not isinstance(fact, LogChunk)]
                changed = {"times": times, "round": sent_turn.round, "attempt": attempt, "past": kept}
                self._times, self.attempt, self.past, self.acceptance = times, attempt, past, sent_turn
                try:
                    self._kept.note({**record, **changed})
                    self._recorded = sent_turn.round
                except OSError:  # a full disk: a reader of the older record sends the same attempt once more
                    self._kept = None
                _LOG.info("%s: sent to its pool again, as attempt %d", self.info.address, attempt)
        except OSError as exc:
            raise NBTorchJobError(f"the job's payload isn't kept any more ({exc.strerror})") from exc

    def _take_up(self, record: Mapping[str, Any]) -> None:
        self._times, self.attempt, self._recorded = record["times"], record["attempt"], record["round"]
        self.past = tuple(map(from_json, record["past"]))
        if "end" in record:
            self._over, self._again = True, None
            self._end = tuple(map(from_json, record["end"]))

    def _hear(self, fact: TurnTaken) -> None:
        """Take over what its lead reported of its attempts."""
        began = [AttemptBegan(fact.time, fact.attempt)] if fact.attempt > 1 else []
        self.attempt, self.past = fact.attempt, (*fact.paid, *began)

    def over(self) -> None:
        """Mark it as over; its payload is no longer kept."""
        if not self._over and self._kept is not None:
            self._kept.over(self.acceptance.round, self._end)
        self._over, self._again = True, None

    def end(self, now: float) -> tuple[Event, ...]:
        """Return the facts that end a job that was to be sent again and wasn't: the same at each call."""
        if not self._end:
            why: list[Event] = [CancelRequested(now)] if self.cancelled else []
            if self._problem and not self.cancelled:
                why = [Notice(now, f"it can't be sent to its pool again: {self._problem}")]
            self._end = (*why, Closed(now))
        return self._end

    def with_end(self, facts: Sequence[Event]) -> list[Event]:
        """Return the facts of its newest attempt, with the job's end."""
        return [*unclosed(facts), *self._end] if self._end else [*facts]


def _attempts(info: JobInfo, attempt: int, past: Sequence[Event]) -> dict[str, Any]:
    """Return what the lead reports to later followers about the attempts of a job that is sent again."""
    ended = [entry for entry in reduce(apply, past, JobState(info)).attempts if entry.number < attempt]
    paid = [
        AttemptPaid(
            entry.end or entry.start,
            entry.number,
            entry.budget.value,
            " ".join(entry.failure.reason.line.split())[:_MOST_WHY],
        )
        for entry in ended
        if entry.budget is not None and entry.failure is not None
    ]
    return {"attempt": attempt, "paid": [asdict(fact) for fact in paid[-_MOST_TOLD:]]}


def unclosed(facts: Sequence[Event]) -> list[Event]:
    """Return the facts of an attempt that another one follows."""
    return [fact for fact in facts if not isinstance(fact, Closed)]


def numbered(event: Event, attempt: int) -> Event:
    """Return a turn's fact as one of that attempt, in which a node and its pod have another life."""
    if attempt == 1:
        return event
    if isinstance(event, NodeStarted | Verdict | ArtifactsReady):
        event = replace(event, attempt=attempt)
    pod: str = getattr(event, "pod", "")
    if pod:
        of_attempt: Any = {"pod": f"{pod}.{attempt}"}
        event = replace(event, **of_attempt)
    return event
