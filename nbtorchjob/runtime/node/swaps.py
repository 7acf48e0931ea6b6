"""A node has its ranks go on with other code: at one call on all nodes, or not at all.

Theory of operation
===================

The client sends the payload of a swap to each node. Then the nodes complete it among themselves, through the
store that their agents share, even if the client goes away. Swaps are made one after the other; each *try*
has a number in the round, which is part of its keys in the store, and goes through four phases:

    phase     word     written by      what
    --------  -------  --------------  ----------------------------------------------------------------------
    agree     id       the first node  which of the requested swaps it is
              has      each node       it has the payload; which kinds of points all of its ranks have passed
              bound    each node       the first call of that kind that none of its ranks has passed
    prepare   ready    each node       its ranks are at the call, and they and the node can make the change
    conclude  verdict  the first node  GO, once all are ready; or why not: by any node, at any time before
    trial     well     each node       its ranks have changed; with ``--or-back`` first calls went well
              trial    the first node  STAYS, or BACK, and which rank failed how

So there is one verdict, and a node follows it once it reads it, as do its ranks (``rank/swapping.py``).
Before a node is ready, it stages the swap beside the place where later attempts look for it (``kept.py``),
and it moves it there before the ranks learn that it stays. If a node ends sooner, so do its ranks.

A node without the payload of the swap that others try follows their verdict as well: as its ranks can't be
ready, that can only be to drop it.
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

from nbtorchjob.runtime.api import points
from nbtorchjob.runtime.api.points import (
    AT,
    KEPT,
    KIND,
    NUMBER,
    SWAP,
    TRIAL,
    VERDICT,
    Agreement,
    Page,
    merged,
)
from nbtorchjob.runtime.ask.answering import Handler, Question, Refused
from nbtorchjob.runtime.facts import emit
from nbtorchjob.runtime.node.kept import KeptSwaps, lay, received, remove
from nbtorchjob.runtime.objects.wire import derived, sealed
from nbtorchjob.runtime.rank.swapping import (
    BACK,
    CHANGED,
    DROP,
    GO,
    PREPARED,
    RAISED,
    REFUSED,
    SETTLED,
    STAYS,
    STEP,
    WENT_WELL,
    outcome_of,
    payload_of,
)
from nbtorchjob.runtime.store.payload import Payload, PayloadError

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
_BACK = "back, "  # ahead of why, in the word on a trial
_MOST_WHY = 300  # characters
_PREFERRED = (points.POINT, points.LEAVING, points.REPORT)
_HAVE_S = 20.0  # for all nodes to have a payload
_FIRST_S = 10.0  # for ranks to pass their first point
_TRIAL_S = 10.0  # for first calls: if only some ranks call a function, these wait no longer
_TOLD_BYTES = 16 << 10  # of a payload that is part of the record, for jobs that run this one's code again
_PAUSE_S = 0.05
_LOOK_S = 1.0  # between two checks that the client is still there
_UNFIT = (OSError, PayloadError)  # a full disk, and a payload that was changed on it


class Ranks(NamedTuple):
    """The ranks of a node that take part in a round; ``numbers`` maps local ranks to ranks of the job."""

    round: int
    folder: str
    page: Page
    numbers: Dict[int, int]
    peers: Any


class _Request:
    """A swap that a client requests from this node."""

    def __init__(self, known_as: str, path: str, words: Dict[str, Any]) -> None:
        self.id = known_as
        self.path = path
        self.words = words
        self.binding = False  # from then on it is completed even if the client goes away
        self.left = False  # whether the client has gone away
        self.answers: "queue.SimpleQueue[Dict[str, Any]]" = queue.SimpleQueue()


class _Try:
    """One try to swap. ``meeting`` is set once a kind of call is agreed on, ``since`` at the verdict GO."""

    def __init__(self, number: int, phase: "Callable[[_Try, Ranks, Set[int]], None]") -> None:
        self.number = number
        self.phase = phase
        self.began = self.since = time.monotonic()
        self.id = ""
        self.request: Optional[_Request] = None
        self.meeting: Optional[Agreement] = None
        self.verdict = ""
        self.trouble = ""  # why this node can't take it
        self.files: List[str] = []  # local modules that were added for it
        self.staged = False  # whether its payload is stored, and only has to be renamed


class Swaps:
    """The swaps of one node, whose folder is ``folder``; payloads are signed with ``key``.

    ``keeps`` says that later attempts begin with the swapped code. ``wake`` has the agent call :meth:`look`
    soon.
    """

    def __init__(self, node: int, folder: str, files: str, key: bytes, *, keeps: bool) -> None:
        self.wake: Callable[[], None] = lambda: None
        self._node = node
        self._home = folder
        self._files = files
        self._key = key
        self.kept = KeptSwaps(node, os.path.join(folder, KEPT) if keeps else "", files, key)
        self._lock = threading.RLock()  # a lab's ranks begin and end in another thread than the agent's
        self._requests: Dict[str, _Request] = {}  # by id, in their order
        self._ranks: Optional[Ranks] = None
        self._try: Optional[_Try] = None
        self._next = 1
        self._unsettled = (
            0  # the number of the last try whose change was made, until all ranks have settled it
        )

    @property
    def questions(self) -> Dict[str, Handler]:
        """The questions about swaps that the node answers."""
        return {"swap": self.swap}

    # In one thread for each question

    def swap(self, question: Question) -> Iterator[Dict[str, Any]]:
        """Receive a payload, which the client sends next, and answer once the swap's outcome is known."""
        known_as = str(question["id"])
        path = os.path.join(self._home, "swap-%s" % hashlib.sha256(known_as.encode()).hexdigest()[:32])
        try:
            payload = received(question, path, self._key)
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
            yield self._answer(question, request)
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

    def _answer(self, question: Question, request: _Request) -> Dict[str, Any]:
        while True:
            try:
                return request.answers.get(timeout=_LOOK_S)
            except queue.Empty:
                pass
            try:
                while question.hear(1e-3) is not None:
                    pass
            except Exception:  # the client is gone
                with self._lock:
                    request.left = True
                    if not request.binding:
                        return {}

    # In the agent's thread

    def enter(self, round_: int, folder: str, page: Page, numbers: Dict[int, int], peers: Any) -> None:
        """Go on with the ranks of a round; ``numbers`` maps local ranks to ranks of the job."""
        with self._lock:
            self.leave("its ranks began anew")
            self._ranks, self._next = Ranks(round_, folder, page, numbers, peers), 1

    def leave(self, why: str) -> None:
        """Record that the code of these ranks can't be swapped any more."""
        with self._lock:
            current, self._try = self._try, None
            if current is not None:
                self.kept.unstage()
            for request in self._requests.values():
                unknown = current is not None and current.request is request and current.verdict == GOES
                request.answers.put({"outcome": "", "why": why, "unknown": unknown})
            self._requests.clear()
            self._ranks, self._unsettled = None, 0

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return self._try is not None or bool(self._requests) or self._unsettled > 0

    def look(self, ended_ranks: Set[int], leaves: bool) -> bool:
        """Take the next step; return whether there is more to do at once.

        ``ended_ranks`` are this node's local ranks that have ended or returned, and ``leaves`` says that a
        node is about to end.
        """
        with self._lock:
            if self._ranks is None:
                return False
            ranks = self._ranks
            if self._unsettled:
                settled = self._unsettled * STEP + SETTLED
                if all(
                    ranks.page.ready(rank) >= settled for rank in ranks.numbers if rank not in ended_ranks
                ):
                    self._unsettled = 0
                    ranks.page.watch(False)
            if self._try is None and self._requests:
                self._try, self._next = _Try(self._next, self._agree), self._next + 1
            current = self._try
            if current is None:
                return False
            if not current.verdict:
                self._follow(current, ranks.peers.decision(self._word(current, "verdict")))
            if not current.verdict:
                assert self._ranks is not None
                request, now = current.request, time.monotonic()
                if leaves:
                    self._decide(current, LEAVES)
                elif ended_ranks.intersection(self._ranks.numbers):
                    self._decide(current, OVER)
                elif request is not None and now > current.began + float(request.words["within"]):
                    self._decide(current, LATE)
            current.phase(current, ranks, ended_ranks)
            return True

    def _word(self, current: _Try, word: str) -> str:
        assert self._ranks is not None
        return "swap/%d/%d/%s" % (self._ranks.round, current.number, word)

    def _say(self, current: _Try, word: str, value: str) -> Optional[List[str]]:
        assert self._ranks is not None
        answers: Optional[List[str]] = self._ranks.peers.say(self._word(current, word), value)
        return answers

    def _decide(self, current: _Try, verdict: str) -> None:
        assert self._ranks is not None
        self._follow(current, self._ranks.peers.decide(self._word(current, "verdict"), verdict))

    def _follow(self, current: _Try, verdict: str) -> None:
        if verdict:
            current.verdict, current.phase = verdict, self._conclude

    def _agree(self, current: _Try, ranks: Ranks, ended_ranks: Set[int]) -> None:
        """Agree on the swap, wait until all nodes have it, and agree on a call that all ranks will make."""
        if current.meeting is not None:
            ranks.page[AT + SWAP] = current.meeting.look()
            if ranks.page[AT + SWAP]:
                current.phase = self._prepare
            return
        if not current.id:
            request = next(iter(self._requests.values()), None)
            if request is None:  # its client has gone away
                self._try, self._next = None, current.number
                return
            current.id = ranks.peers.decide(self._word(current, "id"), request.id)
        request = current.request = self._requests.get(current.id)
        now = time.monotonic()
        if request is None:
            if now > current.began + _HAVE_S:
                self._decide(current, ABSENT)
            return
        request.binding = True
        passed = [kind for kind in points.KINDS if all(self._calls(kind))]
        if not passed and now < current.began + min(_FIRST_S, float(request.words["within"]) / 2):
            return
        masks = self._say(current, "has", str(sum(1 << kind for kind in passed)))
        if masks is None:
            if request.left or now > current.began + _HAVE_S:
                self._decide(current, ABSENT)
            return
        kinds = [kind for kind in _PREFERRED if all(int(mask) >> kind & 1 for mask in masks)]
        if not kinds:
            self._decide(current, POINTLESS)
            return
        try:
            payload = Payload(request.path)
            differing = payload.differing(self._files)
            current.files = [file for file, exists in differing.items() if not exists]
            lay(payload, self._files, current.files)
            to = payload_of(ranks.folder, current.number)
            try:
                os.link(request.path, to)
            except OSError:  # a file system without links
                shutil.copyfile(request.path, to)
        except _UNFIT as exc:
            self._refuse(current, exc)
            return
        page = ranks.page
        page[KIND], page[AT + SWAP], page[NUMBER] = kinds[0], 0, current.number
        current.meeting = Agreement(page, SWAP, kinds[0], ranks.peers, self._word(current, "bound"))

    def _refuse(self, current: _Try, exc: Exception) -> None:
        current.trouble = "node %d can't take it: %s" % (self._node, exc)
        self._decide(current, UNABLE)

    def _calls(self, kind: int) -> List[int]:
        assert self._ranks is not None
        calls = self._ranks.page.calls(kind)
        return [calls[rank] for rank in self._ranks.numbers]

    def _forget(self, current: _Try) -> None:
        self.kept.unstage()
        remove(self._files, current.files)

    def _states(self, current: _Try, ended_ranks: Set[int]) -> Dict[int, int]:
        """Return how far each local rank that hasn't ended has come with this swap."""
        assert self._ranks is not None
        ready = {
            rank: self._ranks.page.ready(rank) for rank in self._ranks.numbers if rank not in ended_ranks
        }
        pairs = {rank: divmod(number, STEP) for rank, number in ready.items()}
        return {rank: state if number == current.number else 0 for rank, (number, state) in pairs.items()}

    def _prepare(self, current: _Try, ranks: Ranks, ended_ranks: Set[int]) -> None:
        """Wait for the ranks to reach the call, and to find out there what they would change."""
        states = self._states(current, set()).values()
        assert current.request is not None
        if REFUSED in states:
            self._decide(current, UNABLE)
        elif all(state == PREPARED for state in states):
            try:
                if not current.staged:
                    self.kept.stage(current.request.path)
                current.staged = True
            except OSError as exc:
                self._refuse(current, exc)
                return
            if self._say(current, "ready", "1") is not None:
                self._decide(current, GOES)

    def _conclude(self, current: _Try, ranks: Ranks, ended_ranks: Set[int]) -> None:
        """Tell the ranks what was decided; where that isn't GO, the try is over."""
        goes = current.verdict == GOES
        if current.meeting is not None:
            ranks.page[VERDICT] = current.number * STEP + (GO if goes else DROP)
        if goes:
            current.since, current.phase = time.monotonic(), self._trial
            return
        self._forget(current)
        self._end(current, ranks, {"outcome": "", "why": current.verdict})

    def _trial(self, current: _Try, ranks: Ranks, ended_ranks: Set[int]) -> None:
        """Wait until all ranks have made the change and tried it; if one of them can't, all undo it."""
        request, meeting, states = current.request, current.meeting, self._states(current, ended_ranks)
        assert request is not None
        assert meeting is not None
        word, or_back = self._word(current, "trial"), request.words["or_back"]
        changed = all(state >= CHANGED for state in states.values())
        late = or_back and time.monotonic() > current.since + _TRIAL_S
        calls, call = ranks.page.calls(meeting.kind), ranks.page[AT + SWAP]
        well = all(not or_back or state == WENT_WELL or calls[rank] > call for rank, state in states.items())
        if RAISED in states.values():
            why = "a rank failed"
            for failed in _errors(self._outcomes(current, ranks)):
                error = failed["error"]
                why = ("rank %d: %s: %s" % (failed["rank"], error["type"], error["message"]))[:_MOST_WHY]
                break
            outcome = ranks.peers.decide(word, _BACK + why)
        elif changed and (late or (well and self._say(current, "well", "1") is not None)):
            outcome = ranks.peers.decide(word, "stays")
        else:
            outcome = ranks.peers.decision(word)
        if not outcome:
            return
        back = outcome.startswith(_BACK)
        if back:
            self._forget(current)
        else:
            try:
                self.kept.keep()
                payload = Payload(request.path)
                # No rank has imported another version of these files, or it would have refused the swap.
                lay(payload, self._files, payload.differing(self._files))
            except _UNFIT as exc:
                text = "node %d can't keep swap %d, so that later attempts may begin without it: %s"
                emit("Notice", text=text % (self._node, self.kept.newest, exc))
        self._record(current, ranks, request, outcome[len(_BACK) :] if back else "")
        self._unsettled = current.number
        ranks.page.watch(True)
        ranks.page[TRIAL] = current.number * STEP + (BACK if back else STAYS)
        self._end(current, ranks, {"outcome": "back" if back else "swapped", "number": self.kept.newest})

    def _end(self, current: _Try, ranks: Ranks, record: Dict[str, Any]) -> None:
        """End a try, and answer its client."""
        request = current.request or self._requests.get(current.id)
        if request is not None:
            outcomes, states = self._outcomes(current, ranks), self._states(current, set())
            meeting = current.meeting
            late = [number for rank, number in ranks.numbers.items() if not states[rank]]
            lacks = {name for outcome in outcomes.values() for name in outcome.get("lacks", ())}
            counts = zip(ranks.numbers.values(), *map(self._calls, points.KINDS))
            request.answers.put(
                {
                    **record,
                    "point": points.NAMES[meeting.kind] if meeting is not None else "",
                    "call": ranks.page[AT + SWAP] if meeting is not None else 0,
                    "names": merged(outcome.get("names", {}) for outcome in outcomes.values()),
                    "errors": _errors(outcomes)[:1],
                    "troubles": [current.trouble] if current.trouble else [],
                    "lacks": sorted(lacks),
                    "compiled": any(outcome.get("compiled") for outcome in outcomes.values()),
                    "late": late if record.get("why") == LATE else [],
                    "silent": [number for number, *calls in counts if not any(calls)],
                    "metrics": outcomes.get(0, {}).get("metrics", {}),
                }
            )
            self._requests.pop(request.id, None)
        if current.meeting is not None:
            ranks.page.release(SWAP)
            with suppress(OSError):
                os.unlink(payload_of(ranks.folder, current.number))
        self._try = None

    def _outcomes(self, current: _Try, ranks: Ranks) -> Dict[int, Dict[str, Any]]:
        """Return the outcomes that ranks have written, by their number in the job."""
        outcomes: Dict[int, Dict[str, Any]] = {}
        for rank, number in ranks.numbers.items():
            with suppress(OSError, ValueError), open(outcome_of(ranks.folder, current.number, rank)) as file:
                outcomes[number] = json.load(file)
        return outcomes

    def _record(self, current: _Try, ranks: Ranks, request: _Request, why_back: str) -> None:
        assert current.meeting is not None
        outcomes, payload = self._outcomes(current, ranks), ""
        if self.kept.place and not why_back:
            with suppress(OSError), open(request.path, "rb") as file:
                whole = file.read(_TOLD_BYTES + 1)
                if len(whole) <= _TOLD_BYTES:  # sealed: others may read the record, and values may be in it
                    payload = base64.b64encode(sealed(whole, derived(self._key, "swap"))).decode()
        emit(
            "Swapped",
            node=self._node,
            round=ranks.round,
            number=self.kept.newest,
            id=request.id,
            by=request.words["by"],
            text=request.words["text"],
            diff=request.words["diff"],
            names=merged(outcome.get("names", {}) for outcome in outcomes.values()),
            point=points.NAMES[current.meeting.kind],
            call=ranks.page[AT + SWAP],
            metrics=outcomes.get(0, {}).get("metrics", {}),
            back=why_back,
            payload=payload,
        )


def _errors(outcomes: Dict[int, Dict[str, Any]]) -> List[Dict[str, Any]]:
    pairs = sorted(outcomes.items())
    return [{"rank": rank, "error": outcome["error"]} for rank, outcome in pairs if "error" in outcome]
