"""A node has its ranks go on with other code: at one call on all nodes, or not at all.

Theory of operation
===================

Whoever asks for a swap brings its payload to each node. Then the nodes see to it among themselves, in the
store that their agents share, whatever becomes of the asker. Swaps are made one after the other; each *try*
has a number in the round, which is part of its words there:

    word       said by            what
    ---------  -----------------  ---------------------------------------------------------------------------
    id         the first node     which of the swaps that were asked for it is
    has        each node          it has the payload; which kinds of points all of its ranks have passed
    bound      each node          the first call of that kind that none of its ranks has passed
    ready      each node          its ranks are at the call, and can make the change
    verdict    the first node     GO, once all are ready; or why not: by any node at any time before that
    well       each node          with ``--or-back``: the first calls of its ranks went well
    trial      the first node     STAYS, or BACK, where one raised

So there is one verdict, and a node that comes to know it follows it, as do its ranks (``rank/swapping.py``).
Before its ranks hear of GO a node has written down the swap, as a fact and as a file that later attempts
begin with; if it ends before, so do its ranks. What is on trial is written down once it stays.

A node that has the payload of no swap that others try follows their verdict all the same: its ranks can't be
ready, so that it is to drop it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import queue
import shutil
import threading
import time
from contextlib import suppress
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set

from nbtorchjob.runtime.api import checkpoints, points
from nbtorchjob.runtime.api.points import AT, KIND, NUMBER, SWAP, VERDICT, Agreement, Page
from nbtorchjob.runtime.api.swapping import ADDED, KEPT, LATER, REPLACED, SAME
from nbtorchjob.runtime.ask.answering import Handler, Question, Refused
from nbtorchjob.runtime.facts.emit import emit
from nbtorchjob.runtime.node.receiving import received
from nbtorchjob.runtime.objects.wire import derived, sealed
from nbtorchjob.runtime.rank import swapped
from nbtorchjob.runtime.rank.swapping import (
    BACK,
    CHANGED,
    DROP,
    GO,
    PREPARED,
    RAISED,
    REFUSED,
    STAYS,
    STEP,
    WENT_WELL,
    outcome_of,
    payload_of,
)
from nbtorchjob.runtime.store.payload import FILES, SWAPS, Payload, PayloadError

# Verdicts beside "go": why nothing is swapped.
GOES, LATE, UNABLE, POINTLESS, ABSENT, LEAVES, OVER = (
    "go",
    "late",
    "unable",
    "no point",
    "absent",
    "leaves",
    "over",
)
_PREFERRED = (points.POINT, points.LEAVING, points.REPORT)
_HAVE_S = 20.0  # for all nodes to have a payload
_FIRST_S = 10.0  # for ranks to pass their first point
_CHANGED_S = 10.0  # for ranks to make a change that they are ready for
_TRIAL_S = 10.0  # for first calls: a function that only some ranks call holds these up for no longer
_TOLD_BYTES = 16 << 10  # of a payload that is part of the record, for jobs that run this one's code again
_PAUSE_S = 0.05
_LOOK_S = 1.0  # between two looks whether the asker is still there


class Ranks(NamedTuple):
    """The ranks of a node that take part in a round: by their number there, which one of the job each is."""

    round: int
    folder: str
    page: Page
    numbers: Dict[int, int]
    peers: Any


class _Request:
    """A swap that somebody asks this node for."""

    def __init__(self, known_as: str, path: str, words: Dict[str, Any]) -> None:
        self.id = known_as
        self.path = path
        self.words = words
        self.left = False  # whether the asker has left
        self.answers: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()


class _Try:
    def __init__(self, number: int) -> None:
        self.number = number
        self.id = ""
        self.request: Optional[_Request] = None
        self.began = self.since = time.monotonic()  # the latter of what it waits for now
        self.agreement: Optional[Agreement] = None
        self.kind = self.call = 0
        self.verdict = self.trial = ""
        self.told = self.answered = False
        self.after: List[int] = []  # how often ranks had called as it was over
        self.outcomes: Dict[int, Dict[str, Any]] = {}  # by rank of the job


class Swaps:
    """The swaps of one node, whose folder is ``folder``; payloads are signed with ``key``.

    ``keeps`` says that later attempts begin with the code as it was swapped. ``wake`` has the agent call
    :meth:`look` soon.
    """

    def __init__(self, node: int, folder: str, files: str, key: bytes, *, keeps: bool) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._node = node
        self._home = folder
        self._files = files
        self._key = key
        self._place = os.path.join(folder, KEPT) if keeps else ""
        self._made = 0  # swaps that aren't kept
        self._lock = threading.RLock()  # of a lab, ranks begin and end in another thread than the agent's
        self._requests: Dict[str, _Request] = {}  # by id, in their order
        self._ranks: Optional[Ranks] = None
        self._try: Optional[_Try] = None
        self._next = 1

    @property
    def questions(self) -> Dict[str, Handler]:
        """What the node may be asked."""
        return {"swap": self.swap}

    # In threads of their own

    def swap(self, asked: Question) -> Iterator[Dict[str, Any]]:
        """Take in a payload, which is said next, and answer once it is known what has become of it."""
        known_as = str(asked["id"])
        path = os.path.join(self._home, "swap-%s" % hashlib.sha256(known_as.encode()).hexdigest()[:32])
        try:
            payload = received(asked, path, self._key)
            words = payload.header.get("swap") or {}
            if words.get("id") != known_as:
                raise Refused("it isn't the payload of that swap")
            request, until = _Request(known_as, path, words), time.monotonic() + _FIRST_S
            while not self._take(request):
                if time.monotonic() > until:
                    raise Refused("its ranks haven't begun yet, or have ended")
                time.sleep(_PAUSE_S)
            self.wake()
            yield {"has": True}
            yield self._answer(asked, request)
        finally:
            with self._lock:
                self._requests.pop(known_as, None)
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _take(self, request: _Request) -> bool:
        with self._lock:
            if self._ranks is not None:
                self._requests[request.id] = request
            return self._ranks is not None

    def _answer(self, asked: Question, request: _Request) -> Dict[str, Any]:
        while True:
            try:
                return request.answers.get(timeout=_LOOK_S)
            except queue.Empty:
                pass
            try:
                while asked.hear(1e-3) is not None:
                    pass
            except Exception:  # the agent goes on with it, or not; nobody hears
                request.left = True

    # In the agent's thread

    def count(self) -> int:
        """Return how many swaps a later attempt would begin with, as far as this node has them."""
        return len(swapped.earlier(self._place)) if self._place else 0

    def agree(self, store: Any, place: int, places: int, connect: Optional[Callable[[], Any]]) -> int:
        """Have all nodes of a round begin with the same swaps, the most that one has; return how many.

        They agree in ``store``, where this node is the one at ``place``. A node that lacks some is given
        them, sealed, by the first one that has them.
        """
        self._recover()
        store.set("nbtorchjob/swaps/%d" % place, str(self.count()))
        counts = [int(store.get("nbtorchjob/swaps/%d" % other)) for other in range(places)]
        most = max(counts)
        if connect is not None and min(counts) < most:
            sealed = connect().below("nbtorchjob/swaps")
            for number in range(min(counts) + 1, most + 1):
                if counts.index(most) == place:
                    with open(self._kept(number), "rb") as file:
                        sealed.seal("%d" % number, file.read())
                elif number > counts[place]:
                    sealed.wait(["%d" % number])
                    self._keep(number, sealed.unseal("%d" % number))
        return most

    def begin_with(self, payload: Payload) -> None:
        """Take the swaps of an earlier job that the job's own payload brings along, in their order."""
        brought = [name for name in payload.checksums() if name.startswith(SWAPS)]
        for number in range(self.count() + 1, len(brought) + 1):
            self._keep(number, payload.read("%s%d" % (SWAPS, number)))

    def _recover(self) -> None:
        """Take what earlier attempts have left in a place that survives pods, as far as it is signed."""
        for path in swapped.earlier(checkpoints.beside(KEPT)) if self._place else ():
            if not os.path.exists(os.path.join(self._place, os.path.basename(path))):
                try:
                    Payload(path).verify(self._key)
                except PayloadError as exc:
                    emit("Notice", text="a swap of an earlier attempt isn't made again: %s" % exc)
                    return
                with open(path, "rb") as file:
                    self._keep(self.count() + 1, file.read())

    def _kept(self, number: int) -> str:
        return os.path.join(self._place, "%d.payload" % number)

    def _keep(self, number: int, data: bytes) -> None:
        for place in filter(None, (self._place, checkpoints.beside(KEPT))):
            os.makedirs(place, exist_ok=True)
            path = os.path.join(place, "%d.payload" % number)
            with open(path + ".partial", "wb") as file:
                file.write(data)
            os.replace(path + ".partial", path)

    def enter(self, round_: int, folder: str, page: Page, numbers: Dict[int, int], peers: Any) -> None:
        """Go on with the ranks of a round: by their number here, which one of the job each is."""
        with self._lock:
            self.leave("its ranks began anew")
            self._ranks, self._next = Ranks(round_, folder, page, numbers, peers), 1

    def leave(self, why: str) -> None:
        """Take in that these ranks can't be swapped any more."""
        with self._lock:
            self._ranks = self._try = None
            for request in self._requests.values():
                request.answers.put({"outcome": "", "why": why})
            self._requests.clear()

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return self._try is not None or bool(self._requests)

    def look(self, gone: Set[int], leaves: bool) -> bool:
        """Do what is next; return whether there is more to do at once.

        ``gone`` are this node's ranks, by their number there, that have ended or returned, and ``leaves``
        says that a node is about to end.
        """
        with self._lock:
            return self._look(gone, leaves)

    def _look(self, gone: Set[int], leaves: bool) -> bool:
        ranks = self._ranks
        if ranks is None or not self.busy:
            return False
        if self._try is None:
            self._try, self._next = _Try(self._next), self._next + 1
        current = self._try
        request = current.request
        if not current.verdict:
            current.verdict = ranks.peers.heard(self._word(current, "verdict"))
        if not current.verdict and leaves:
            self._decide(current, LEAVES)
        elif not current.verdict and gone.intersection(ranks.numbers):
            self._decide(current, OVER)
        elif not current.verdict and request is not None and self._late(current, request):
            self._decide(current, LATE)
        if current.verdict:
            self._conclude(current, gone)
        elif current.agreement is None:
            self._begin(current)
        elif not current.call:
            current.call = ranks.page[AT + SWAP] = current.agreement.look()
        else:
            self._prepare(current)
        return True

    def _late(self, current: _Try, request: _Request) -> bool:
        return time.monotonic() > current.began + float(request.words["within"])

    def _word(self, current: _Try, word: str) -> str:
        assert self._ranks is not None
        return "swap/%d/%d/%s" % (self._ranks.round, current.number, word)

    def _say(self, current: _Try, word: str, value: str) -> Optional[List[str]]:
        assert self._ranks is not None
        said: Optional[List[str]] = self._ranks.peers.say(self._word(current, word), value)
        return said

    def _decide(self, current: _Try, verdict: str) -> None:
        assert self._ranks is not None
        current.verdict = self._ranks.peers.decide(self._word(current, "verdict"), verdict)
        current.since = time.monotonic()

    def _begin(self, current: _Try) -> None:
        """Find out which swap it is, have it here, and choose a kind of points that all ranks pass."""
        ranks = self._ranks
        assert ranks is not None
        if not current.id:
            first = next(iter(self._requests.values()), None)
            if first is None:  # its asker left
                self._try, self._next = None, current.number
                return
            current.id = ranks.peers.decide(self._word(current, "id"), first.id)
        request = current.request = self._requests.get(current.id)
        now = time.monotonic()
        if request is None:
            if now > current.began + _HAVE_S:
                self._decide(current, ABSENT)
            return
        passed = [kind for kind in points.KINDS if all(self._calls(kind))]
        if not passed and now < current.began + min(_FIRST_S, float(request.words["within"]) / 2):
            return
        said = self._say(current, "has", str(sum(1 << kind for kind in passed)))
        if said is None:
            if request.left or now > current.began + _HAVE_S:
                self._decide(current, ABSENT)
            return
        kinds = [kind for kind in _PREFERRED if all(int(mask) >> kind & 1 for mask in said)]
        if not kinds:
            self._decide(current, POINTLESS)
            return
        self._bring_files(request)
        self._link(request.path, payload_of(ranks.folder, current.number))
        page, current.kind = ranks.page, kinds[0]
        page[KIND], page[AT + SWAP], page[NUMBER] = current.kind, 0, current.number
        current.agreement = Agreement(page, SWAP, current.kind, ranks.peers, self._word(current, "bound"))

    def _calls(self, kind: int) -> List[int]:
        assert self._ranks is not None
        calls = self._ranks.page.calls(kind)
        return [calls[rank] for rank in self._ranks.numbers]

    def _link(self, path: str, to: str) -> None:
        try:
            os.link(path, to)
        except OSError:  # a file system without links
            shutil.copyfile(path, to)

    def _bring_files(self, request: _Request) -> None:
        """Lay the local modules that come along beside those that are there; what is imported stays."""
        payload = Payload(request.path)
        names = [name[len(FILES) :] for name in payload.checksums() if name.startswith(FILES)]
        if any(not os.path.exists(os.path.join(self._files, name)) for name in names):
            payload.extract(self._files)

    def _states(self, current: _Try) -> Dict[int, int]:
        """Return what each rank of the node, by its number there, has done of this swap."""
        assert self._ranks is not None
        pairs = {rank: divmod(self._ranks.page.ready(rank), STEP) for rank in self._ranks.numbers}
        return {rank: what if number == current.number else 0 for rank, (number, what) in pairs.items()}

    def _prepare(self, current: _Try) -> None:
        states = self._states(current).values()
        if REFUSED in states:
            self._decide(current, UNABLE)
        elif all(state == PREPARED for state in states) and self._say(current, "ready", "1") is not None:
            self._decide(current, GOES)

    # Once there is a verdict

    def _conclude(self, current: _Try, gone: Set[int]) -> None:
        ranks = self._ranks
        assert ranks is not None
        request = current.request
        if not current.told:
            current.told = True
            self._read(current)
            if current.verdict == GOES and request is not None and not request.words["or_back"]:
                self._write_down(current, request)
            self._tell(current, GO if current.verdict == GOES else DROP)
            current.since = time.monotonic()
        states = self._states(current)
        left = {rank: state for rank, state in states.items() if rank not in gone}
        changed = all(state >= CHANGED for state in left.values())
        if current.verdict != GOES or request is None:
            self._answer_with(current, {"outcome": "", "why": current.verdict})
            self._end(current)
        elif not changed and time.monotonic() < current.since + _CHANGED_S:
            return
        elif request.words["or_back"] and not current.trial:
            self._try_out(current, request, left)
        else:
            number = self.count() if self._place else self._made
            outcome = "back" if current.trial == "back" else "swapped"
            self._answer_with(current, {"outcome": outcome, "number": number})
            # With code on trial a rank that has called none of it finds out at its next point.
            current.after = current.after or self._calls(current.kind)
            pairs = zip(ranks.numbers, current.after, self._calls(current.kind))
            waits = any(now <= then for rank, then, now in pairs if rank not in gone)
            if not current.trial or not waits or time.monotonic() > current.since + _TRIAL_S:
                self._end(current)

    def _try_out(self, current: _Try, request: _Request, states: Dict[int, int]) -> None:
        ranks = self._ranks
        assert ranks is not None
        calls = ranks.page.calls(current.kind)
        word, trial = self._word(current, "trial"), ""
        through = all(state == WENT_WELL or calls[rank] > current.call for rank, state in states.items())
        if RAISED in states.values():
            self._read(current)
            trial = ranks.peers.decide(word, "back")
        elif (
            through and self._say(current, "well", "1") is not None
        ) or time.monotonic() > current.since + _TRIAL_S:
            trial = ranks.peers.decide(word, "stays")
        else:
            trial = ranks.peers.heard(word)
        if trial:
            current.trial, current.since = trial, time.monotonic()
            self._read(current)
            self._write_down(current, request)
            self._tell(current, BACK if trial == "back" else STAYS)

    def _tell(self, current: _Try, verdict: int) -> None:
        assert self._ranks is not None
        if current.agreement is not None:
            self._ranks.page[VERDICT] = current.number * STEP + verdict

    def _end(self, current: _Try) -> None:
        assert self._ranks is not None
        if current.agreement is not None:
            self._ranks.page.release(SWAP)
            with suppress(FileNotFoundError):
                os.unlink(payload_of(self._ranks.folder, current.number))
        self._try = None

    def _read(self, current: _Try) -> None:
        """Read what the ranks have left of how it went there."""
        ranks = self._ranks
        assert ranks is not None
        for rank, number in ranks.numbers.items():
            with suppress(OSError, ValueError), open(outcome_of(ranks.folder, current.number, rank)) as file:
                current.outcomes[number] = {**current.outcomes.get(number, {}), **json.load(file)}

    def _write_down(self, current: _Try, request: _Request) -> None:
        assert self._ranks is not None
        back, told = current.trial == "back", b""
        if self._place and not back:
            with open(request.path, "rb") as file:
                told = file.read()
            self._keep(self.count() + 1, told)
        elif not back:
            self._made += 1
        metrics = current.outcomes.get(0, {}).get("metrics", {})
        words = request.words
        emit(
            "Swapped",
            node=self._node,
            round=self._ranks.round,
            number=self.count() if self._place else self._made,
            id=request.id,
            by=words["by"],
            text=words["text"],
            diff=words["diff"],
            names=self._names(current),
            point=points.NAMES[current.kind],
            call=current.call,
            metrics=metrics,
            back=self._why_back(current) if back else "",
            payload=self._sealed(told) if len(told) <= _TOLD_BYTES else "",
        )

    def _sealed(self, payload: bytes) -> str:
        """Return a payload as the record has it, which others may read: values may be in it."""
        return base64.b64encode(sealed(payload, derived(self._key, "swap"))).decode() if payload else ""

    def _why_back(self, current: _Try) -> str:
        for failed in self._errors(current):
            error = failed["error"]
            return "rank %d: %s: %s" % (failed["rank"], error["type"], error["message"])
        return "another node's rank failed"

    def _names(self, current: _Try) -> Dict[str, str]:
        """Return how each name changed; of ranks among which that differs what says most."""
        order = (SAME, ADDED, REPLACED, LATER)
        names: Dict[str, str] = {}
        for outcome in current.outcomes.values():
            for name, how in outcome.get("names", {}).items():
                names[name] = max(names.get(name, how), how, key=order.index)
        return names

    def _errors(self, current: _Try) -> List[Dict[str, Any]]:
        pairs = sorted(current.outcomes.items())
        return [{"rank": rank, "error": said["error"]} for rank, said in pairs if "error" in said]

    def _answer_with(self, current: _Try, record: Dict[str, Any]) -> None:
        if current.answered:
            return
        current.answered = True
        request = current.request or self._requests.get(current.id)
        if request is None or self._ranks is None:
            return
        ranks, states = self._ranks, self._states(current)
        late = [number for rank, number in ranks.numbers.items() if not states[rank]]
        lacks = {name for said in current.outcomes.values() for name in said.get("lacks", ())}
        calls = {kind: self._calls(kind) for kind in points.KINDS}
        silent = [
            number for at, number in enumerate(ranks.numbers.values()) if not any(calls[k][at] for k in calls)
        ]
        request.answers.put(
            {
                **record,
                "point": points.NAMES[current.kind],
                "call": current.call,
                "names": self._names(current),
                "errors": self._errors(current)[:1],
                "lacks": sorted(lacks),
                "compiled": any(said.get("compiled") for said in current.outcomes.values()),
                "late": late if record.get("why") == LATE else [],
                "silent": silent,
                "metrics": current.outcomes.get(0, {}).get("metrics", {}),
            }
        )
        self._requests.pop(request.id, None)
