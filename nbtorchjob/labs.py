"""The handle on a lab: a job whose ranks stay, and run one cell or function after the other."""

from __future__ import annotations

import io
import json
import secrets
import shlex
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import field, replace
from functools import lru_cache, partial
from types import MappingProxyType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from nbtorchjob import capture
from nbtorchjob.backends import resending, turns_of
from nbtorchjob.backends.base import Backend, Numbers, Signs, Talks, able
from nbtorchjob.backends.resending import OutOfTurnError, ResendFolder, TakenTurn
from nbtorchjob.backends.talk import MOST
from nbtorchjob.capture import RankNames, cells, identity
from nbtorchjob.capture.cells.lookup import NOTHING
from nbtorchjob.environment import images, interpreter
from nbtorchjob.environment.interpreter import Environment
from nbtorchjob.errors import (
    AskError,
    JobEndedError,
    LackingError,
    NBTorchJobError,
    NotOwnError,
    SpecError,
    SubmitError,
)
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.job import Job, newest_run
from nbtorchjob.machine import interrupts
from nbtorchjob.machine.folders import working
from nbtorchjob.payload import archive
from nbtorchjob.runtime.lab import ANEW, ELSEWHERE, NOT_YET
from nbtorchjob.runtime.store.payload import GIVEN, signed_given
from nbtorchjob.spec.jobspec import PLACES, JobSpec
from nbtorchjob.state import US, JobInfo, JobState, Origin, turns
from nbtorchjob.state.facts.events import TurnTaken
from nbtorchjob.state.info import MARK
from nbtorchjob.state.text import attempts, facts, lifetime, swaps
from nbtorchjob.state.turns import Stage
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

if TYPE_CHECKING:
    from nbtorchjob.backends.talk import Talk
    from nbtorchjob.capture import Call

T = TypeVar("T")

_ASKED_S = 10.0
_TAKEN_S = 60.0  # for a node to receive all of a turn that was sent
_TOLD_S = 5.0  # until a turn that was accepted shows in the lab's state
_LOOK_S = 0.02
_QUIET_S = 2.0  # of waiting for ranks, before a message says so
_RESUMED_S = 3.0  # for an operator to report that a resumed job goes on
_TRIES = 30  # not counting those before the lab has ranks
_ANEW = "restart it with"  # packages aren't changed beneath running ranks
_GONE_S = 0.2  # before a node that couldn't be reached is asked again
_BEGINS_S = 120.0  # for a lost node to begin anew whose loss isn't reported yet
_ANEW_S = 0.5  # before a lab whose ranks are just starting is asked again
# The variables of this process that were sent to a lab: by run and round, the digests by name.
_shipped: dict[tuple[str, int], Mapping[str, str]] = {}
_FIRST = -1  # in place of the round of a lab's own call, which changes when its ranks restart
_noted: dict[tuple[str, str], str] = {}  # by run and name: the notebook's value that a note was about
_environments: dict[str, Environment] = {}  # of the ranks of labs on this machine, by run


class LabAnswer(FrozenDataclass):
    """What a lab's ranks answered before a call is captured for them: which names they have.

    ``base`` identifies the life of the ranks that answered; None if they didn't need to be asked. ``notes``
    name what is gone. ``both`` are the names that the notebook has, too, but for which the ranks use their
    own value, each with an identity of the notebook's value.
    """

    rank_names: RankNames
    base: int | None
    notes: tuple[str, ...] = ()
    namespace: Mapping[str, Any] = field(default_factory=dict)
    seen: int = -1  # the ranks' base at the time
    both: Mapping[str, str] = field(default_factory=dict)


class Lab:
    """A job whose ranks stay: each cell or function finds what earlier ones set there.

    It lives on without a handle, until it is ended, or has been idle for too long (``JobSpec.idle``).
    As a context manager it is ended after the block.
    """

    def __init__(self, backend: Backend, info: JobInfo, *, trust: bool = False) -> None:
        self.info = info
        self.trust = trust
        self._backend = backend
        self._turns = turns_of(info)

    @property
    def name(self) -> str:
        """The lab's name: what ``nbtorchjob.lab`` and ``--on`` take."""
        return self.info.name

    @property
    def job(self) -> Job[Any]:
        """The lab itself as a job, from its start to its end."""
        return Job(self._backend, self.info, trust=self.trust)

    @property
    def state(self) -> JobState:
        """The lab's state now."""
        return self._turns.lab(self.info)

    @property
    def first(self) -> Job[Any]:
        """The cell or function that the lab began with, as a job."""
        return Job(self._turns, turns.first(self.info), trust=self.trust)

    @property
    def newest(self) -> Job[Any]:
        """The cell or function that the lab accepted last, as a job."""
        turn = turns.newest(self.state)
        if turn is None and self.info.is_pool:
            return self.job
        if turn is None or not turn.fact.id:
            return self.first
        return self.turn(f"{self.info.address}{MARK}{turn.number}")

    def run(
        self,
        fn: Callable[..., T],
        /,
        *args: Any,
        rank: int | str | Iterable[int] | None = None,
        push: Sequence[str] = (),
        **kwargs: Any,
    ) -> Job[T]:
        """Run ``fn(*args, **kwargs)`` on all or some of the lab's ranks; return its handle at once.

        Its globals are the ranks': a name that the notebook has, too, means the ranks' value, except for
        names in ``push``. Raises as ``submit`` does, ``JobEndedError`` if the lab has ended, and
        ``SpecError`` for a ``rank`` that it doesn't have.
        """
        ranks = ranks_of(rank)
        with interrupts.message(interrupts.NOTHING):
            space = getattr(getattr(fn, "func", fn), "__globals__", {})
            answer = self.asked(capture.asked_for_by(fn, args), space, ranks=ranks, push=push)
            call = capture.from_function(fn, args, kwargs, root=working(), rank_names=answer.rank_names)
        for note in self.notes(call, answer):
            warnings.warn(note, stacklevel=2)
        return self.send(call, answer, identity.origin_here(call.sources), ranks=ranks)

    def run_cell(
        self,
        text: str,
        namespace: Mapping[str, Any] = MappingProxyType({}),
        *,
        rank: int | str | Iterable[int] | None = None,
        push: Sequence[str] = (),
    ) -> Job[Any]:
        """Run a cell's text on all or some of the lab's ranks; ``namespace`` has the names that they lack.

        Its value is that of its last expression. Raises as :meth:`run` does, and ``SyntaxError``.
        """
        ranks, space = ranks_of(rank), {"__name__": "__main__", **namespace}
        with interrupts.message(interrupts.NOTHING):
            answer = self.asked(capture.asked_for(text, space), space, ranks=ranks, push=push)
            call = capture.from_cell(text, space, root=working(), rank_names=answer.rank_names)
        for note in self.notes(call, answer):
            warnings.warn(note, stacklevel=2)
        return self.send(call, answer, identity.origin_here(call.sources), ranks=ranks)

    def pull(self, name: str, ranks: Sequence[int] = ()) -> Any:
        """Return the value that a name has on rank 0, or on the first of ``ranks``."""
        speaker = (ranks or (0,))[:1]
        answer = self.asked([name], {}, ranks=speaker)
        if name not in answer.rank_names.names:
            why = answer.rank_names.why(name) or "isn't defined on its ranks"
            raise SpecError("pull", name, f"a name on {self.name}: it {why}")
        call = capture.from_cell(name, {}, filename=turns.PULL, root=working(), rank_names=answer.rank_names)
        return self.send(replace(call, label=name), answer, ranks=speaker).result()

    def end(self) -> None:
        """Request the lab's end, once it has ranks: they run what the lab has accepted, then return."""
        with suppress(JobEndedError):
            self._ask({"question": "end"})

    def asked(
        self,
        names: Collection[str],
        namespace: Mapping[str, Any],
        *,
        ranks: Sequence[int] = (),
        push: Sequence[str] = (),
        say: Callable[[str], object] = lambda text: None,
    ) -> LabAnswer:
        """Ask which of the names the ranks have; raises as :meth:`run` does, before anything is sent."""
        if self.info.is_pool:
            raise SpecError("on", self.name, f"a lab; it is a pool: --pool {self.name} runs a job there")
        for name in push:
            if name not in namespace:
                raise SpecError("push", name, "a variable of the notebook")
        state = self._ready(say)
        lab_ranks = turns.ranks(state)
        for rank in ranks:
            if rank not in lab_ranks:
                many = f"0 to {max(lab_ranks)}" if len(lab_ranks) > 1 else "0"
                raise SpecError(
                    "rank", rank, f"{many}: {self.name} has {words.count(len(lab_ranks), 'rank')}"
                )
        notes = [*attempts.began_anew(state)]
        needed_names = [name for name in names if name not in push]
        pushed = {name: namespace[name] for name in push}
        if not needed_names:
            return LabAnswer(
                RankNames(push=pushed, lab=self.name), None, tuple(notes), namespace, state.round
            )
        answer = self._ask({"question": "names", "ranks": list(ranks) or None, "of": needed_names})
        has = frozenset(str(name) for name in answer.get("has", ())) & set(needed_names)
        base = int(answer["base"])
        sent, both = self._sent_values(state, base), dict[str, str]()
        for name in sorted(has & namespace.keys()):
            value = namespace[name]
            # A value that was never sent from here needn't be pickled just for this.
            fingerprint = capture.digest(value) if name in sent else str(id(value))
            is_known = fingerprint in (sent.get(name), _noted.get((self.info.run, name)))
            if not (is_known or isinstance(value, ModuleType)):
                both[name] = fingerprint
        rank_names = RankNames(
            has,
            lambda name: why_not(self.state, name, ranks),
            pushed,
            self.name,
            lambda: known_names(self.state),
        )
        return LabAnswer(rank_names, base, tuple(notes), namespace, base, both)

    def notes(self, call: Call, answer: LabAnswer) -> list[str]:
        """Return the notes to show before a call is sent; raises ``LackingError`` if it can't run there.

        The ranks lack the packages that their node lacked at its start, unless a cell has installed them.
        """
        lines = [*answer.notes]
        for name in answer.both:
            options = f"--push {name} sends the notebook's, --pull {name} copies the lab's"
            lines.append(f"the ranks of {self.name} use their own {name}: {options}")
        lines += call.notes_on(self._spec.max_ranks)
        environment = self._rank_environment()
        if environment is not None:
            lines += self._differences(call, environment)
        if PLACES[self.info.backend].remote:
            from nbtorchjob.capture import imported  # late: on this machine, no file is missing

            lines += imported.not_shipped(call, working(), self._spec.ship)
        return lines

    def _rank_environment(self) -> Environment | None:
        """Return the environment that a lab's ranks started with; None if it wasn't reported."""
        run = self.info.run
        if run in _environments:
            return _environments[run]
        # For labs on this machine, the state that is read for each cell lacks this fact.
        state = self.state if self.info.cluster else self._backend.snapshot(self.info.address)
        if state.importable is None:
            return None
        installed = images.of(state.importable, installed=True)
        if not self.info.cluster:  # a later attempt's nodes may have another image
            _environments[run] = installed
        return installed

    def _differences(self, call: Call, rank_environment: Environment) -> list[str]:
        own_environment = interpreter.environment()
        # Requirements of the cell's own script block that the ranks lack
        if "# ///" not in call.text:
            unmet = []
        else:
            from nbtorchjob.capture import packages  # late: hardly any cell has such a block

            unmet = images.unmet(packages.of_cell(call.text), rank_environment)
        if missing := unmet:
            asks = shlex.join(word for line in missing for word in ("--package", line))
            raise LackingError(f"{self.name} lacks requirements of the cell's script block: {_ANEW} {asks}")
        if own_environment.distributions == rank_environment.distributions:
            return []
        differences = images.compared(call.needs, own_environment, rank_environment)
        if differences.absent:
            lacks = self._ask({"question": "lacks", "of": differences.absent})["lacks"]
            differences = differences.without({*differences.absent} - {*lacks})
        if refusal := differences.refusal(
            self.name, strict=bool(self._spec.strict), add=_ANEW, uncompilable=call.uncompilable
        ):
            raise LackingError(refusal)
        return [f"{self.name} {differences.line}"] if differences.line else []

    def send(
        self,
        call: Call,
        answer: LabAnswer,
        origin: Origin | None = None,
        *,
        ranks: Sequence[int] = (),
        all_ranks: bool = False,
        say: Callable[[str], object] = lambda text: None,
    ) -> Job[Any]:
        """Have the ranks run a captured call; return its handle once the lab has accepted it, for good.

        It runs only once even if it is sent again, as after a broken connection. With ``all_ranks``, or if
        the lab's spec says so, every rank's value is returned.
        """
        origin, all_ranks = origin or Origin(), all_ranks or self._spec.all_ranks
        environment = self._rank_environment()
        sourced = environment is None or environment.minor != capture.PYTHON
        call = replace(call, by=identity.owner(call, origin), sourced=sourced)
        spec = replace(self._spec, all_ranks=all_ranks)

        def pack(file: BinaryIO, key: bytes) -> int:
            return archive.write_turn(file, call, key, spec, push=[*answer.rank_names.push])

        question = {"base": answer.base, "ranks": list(ranks) or None}
        fields = {"all_ranks": all_ranks, "turn": tuple(ranks)}
        job, reply = self._send(call, pack, question, origin, fields, say)
        if int(reply["base"]) != answer.seen:
            say(f"Note: {attempts.anew(self.state)}")
        _noted.update({(self.info.run, name): fingerprint for name, fingerprint in answer.both.items()})
        self.shipped(call, answer.namespace, answer.rank_names, int(reply["round"]))
        return job

    def send_job(
        self,
        call: Call,
        spec: JobSpec,
        origin: Origin,
        *,
        say: Callable[[str], object] = lambda text: None,
        run: Mapping[str, Any] = MappingProxyType({}),
        variant: bytes = b"",
    ) -> Job[Any]:
        """Send a call to a pool as a job that fits it (``pools.fitted``); otherwise as :meth:`send` does.

        For a run of a group, ``run`` has its record's fields about the group, ``variant`` its parameters.
        """

        def pack(file: BinaryIO, key: bytes) -> int:
            env = {GIVEN: signed_given(variant, key)} if variant else {}
            return archive.write(file, call, spec, key, env=env, sweep=json.dumps({**run}) if run else "")

        policy = spec.launch.run_policy
        fields = {
            "all_ranks": spec.all_ranks,
            "spec": spec.to_json(),
            "deadline_s": policy.active_deadline_seconds if policy is not None else None,
            "retry_owner": US if spec.retry is not None else "",
            "turn": (),
            "nodes": (spec.launch.min_nodes, spec.launch.max_nodes),
            **run,
        }
        numbers = able(self._backend, Numbers, "send", self.info.address)
        number = numbers.number(self.info.address, max(turns.numbers(self.state).values(), default=0))
        question = {"base": None, "ranks": None, "nodes": spec.launch.min_nodes, "number": number}
        job, _ = self._send(call, pack, question, origin, fields, say)
        return job

    def _send(
        self,
        call: Call,
        pack: Callable[[BinaryIO, bytes], int],
        question_fields: Mapping[str, Any],
        origin: Origin,
        record_fields: Mapping[str, Any],
        say: Callable[[str], object],
    ) -> tuple[Job[Any], dict[str, Any]]:
        """Send a turn as ``pack`` writes it; return its handle, and the answer, with its round and base.

        ``question_fields`` say how it is to run, ``record_fields`` are more fields of its record.
        """
        file = io.BytesIO()
        size = pack(file, able(self._backend, Signs, "send", self.info.address).key(self.info.address))
        id_, packed = f"c{secrets.token_hex(8)}", time.time()
        question = {"question": "turn", "id": id_, **question_fields, "size": size, "sent": packed}
        since, was_taken = self._turns.now(self.info), False
        try:
            began, announced = time.monotonic(), False
            while True:
                with suppress(OutOfTurnError):
                    before, reply = self._sent(question, file.getbuffer(), say)
                    break
                if not announced and time.monotonic() > began + _QUIET_S:
                    announced = True
                    say(f"Waiting for jobs that {self.name} lost: they are sent again first")
                time.sleep(_LOOK_S)
            was_taken = True
            turn = self._await_turn(id_)
        except BaseException as exc:
            since.forget()
            if isinstance(exc, KeyboardInterrupt):
                # It may have been accepted just as its sender was interrupted.
                turn_fact = self._await_turn(id_) if was_taken else turns.sent(self.state, id_)
                if turn_fact is not None:
                    self._turns.cancel(f"{self.info.address}{MARK}{id_}")
            raise
        labels = {name: (origin.labels.get(name, name), text) for name, text in call.sources.items()}
        fields = {
            "key": str(question_fields.get("number") or (turn[0] if turn is not None else id_)),
            "created": packed,
            "label": call.label,
            "ships": capture.ships_line(call),
            "captured": capture.captured(call),
            "sources": labels,
            "notebook": origin.notebook,
            "cell": origin.cell,
            "began": call.began,
            "packed": packed,
            "payload": size,
            **record_fields,
        }
        fields["turn"] = fields["turn"] or (turn[1].ranks if turn is not None else ())
        info = turns.of(self.info, **fields)

        acceptance = TakenTurn(before, int(reply["round"]), since)
        if self.info.is_pool:
            record = {"question": question, "times": 1, "round": acceptance.round, "attempt": 1, "past": []}
            kept: ResendFolder | None = None
            # A payload with secrets isn't written to disk.
            if not info.jobspec.secret_env:
                with suppress(OSError, NotOwnError):
                    kept = ResendFolder.create(info, self.info.run, id_, file.getbuffer(), record)
            self._turns.sent(info, acceptance, partial(self._again, question, file.getbuffer()), kept)
        else:
            self._turns.sent(info, acceptance)
        return Job(self._turns, info, trust=self.trust), reply

    def _again(
        self, question: Mapping[str, Any], data: memoryview, times: int, attempts: Mapping[str, Any]
    ) -> TakenTurn:
        """Send a job of a pool for the ``times``-th time, with what its lead will report of its attempts."""
        new_question = {**question, "id": turns.again(question["id"], times), **attempts}
        since = self._turns.now(self.info)
        try:
            before, reply = self._sent(new_question, data, lambda text: None)
        except BaseException:
            since.forget()
            raise
        return TakenTurn(before, int(reply["round"]), since)

    def turn(self, address: str) -> Job[Any]:
        """Return a handle on a turn; raises ``JobNotFoundError``.

        Following a job of a pool sends it again if necessary, even if another process sent it first.
        """
        sent = self._turns.sent_by_user(address) if self.info.is_pool else None
        if sent is not None:
            sent.take_up(self._again)
        return Job(self._turns, self._turns.info(address), trust=self.trust)

    def shipped(
        self,
        call: Call,
        namespace: Mapping[str, Any],
        rank_names: RankNames = NOTHING,
        round: int = _FIRST,
    ) -> None:
        """Record which of the notebook's variables a turn took along: for these, both have the same value."""
        names = {*(ship.name for ship in call.ships), *rank_names.push} - rank_names.names
        sent = {name: capture.digest(namespace[name]) for name in names & namespace.keys()}
        if sent:
            _shipped[self.info.run, round] = sent
        for name in sent:
            _noted.pop((self.info.run, name), None)

    def _sent_values(self, state: JobState, base: int) -> Mapping[str, str]:
        """Return digests of the values that this process sent to ranks of ``base``, unless set since."""
        swapped = {(swap.round, name) for swap in swaps.as_swapped(state) for name in swap.names}
        sent: dict[str, str] = {}
        for turn in turns.turns(state):
            fact = turn.fact
            if fact.base == base:
                own_digests = _shipped.get((self.info.run, fact.round if fact.id else _FIRST), {})
                changed_names = _sets(fact.text, fact.filename) | ({*fact.pushed} - own_digests.keys())
                sent = {
                    name: digest
                    for name, digest in {**sent, **own_digests}.items()
                    if name not in changed_names and (fact.round, name) not in swapped
                }
        return sent

    @property
    def _noun(self) -> str:
        """The word for what runs there: cell or job."""
        return turns.what_of(self.info)

    @property
    def _spec(self) -> JobSpec:
        return self.info.jobspec

    def _sent(
        self, question: Mapping[str, Any], data: memoryview, say: Callable[[str], object]
    ) -> tuple[JobState, dict[str, Any]]:
        """Send a turn; return the lab's state before that, and the answer.

        Raises ``OutOfTurnError`` if other jobs of a pool go first.
        """
        left, began, announced = _TRIES, time.monotonic(), False
        while left:
            left -= 1
            state = self._ready(say)
            full_question = question
            if self.info.is_pool:
                # A job that was sent by an older version has no number.
                if resending.is_behind(self.info.run, question.get("number", 0), state.round):
                    raise OutOfTurnError
                full_question = {**question, "base": state.round}
            try:
                with self._nodes.talk(self.info.address, self._lead(state), full_question, _ASKED_S) as talk:
                    talk.send_all(data)
                    answer = talk.hear(_TAKEN_S)
                    if answer is not None and "bring" in answer:
                        self._bring(answer["bring"], talk, question, data)
                        answer = talk.hear(_TAKEN_S)
                if answer is not None:
                    return state, answer
            except TimeoutError as exc:
                if not left:
                    problem = f"didn't accept the {self._noun} within {_TAKEN_S:.0f} s"
                    raise SubmitError(f"{self.name} {problem}") from exc
            except AskError as exc:
                if question["base"] is not None and _anew(exc):
                    problem = f"restarted while the {self._noun} was sent: run it again"
                    raise SubmitError(f"the ranks of {self.name} {problem}") from exc
                if exc.absent and not announced and time.monotonic() > began + _QUIET_S:
                    announced = True
                    say(f"Waiting for {self.name}, which is restarting")
                left += _comes(exc, began)
                if not left or not self._may_go_on(exc):
                    raise self._refused(exc) from exc
        raise SubmitError(f"{self.name} didn't accept the {self._noun}")

    def _bring(self, nodes: Iterable[int], talk: Talk, question: Mapping[str, Any], data: memoryview) -> None:
        """Send a turn's payload to the nodes other than the lead, by connections that others can't read."""
        bring = {"question": "bring", "id": question["id"], "size": question["size"]}

        def to(node: int) -> None:
            with self._nodes.talk(self.info.address, node, bring, _ASKED_S) as node_talk:
                node_talk.send_all(data)
                node_talk.hear(_TAKEN_S)

        pool = ThreadPoolExecutor(MOST, "bring")
        try:
            under_way = {pool.submit(to, node) for node in nodes}
            while under_way:
                done, under_way = wait(under_way, _ASKED_S, FIRST_EXCEPTION)
                for sent in done:
                    sent.result()
                talk.send(b"")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        talk.send({"brought": True})

    def _may_go_on(self, exc: AskError) -> bool:
        """Wait a moment if a node refuses for now, or can't be reached; return whether to ask again."""
        if exc.said and not _elsewhere(exc) and not _anew(exc):
            return False
        time.sleep(_LOOK_S if _elsewhere(exc) else _ANEW_S if _anew(exc) else _GONE_S)
        return True

    def _ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        left, began = _TRIES, time.monotonic()
        while left:
            left -= 1
            state = self._ready()
            try:
                with self._nodes.talk(self.info.address, self._lead(state), question, _ASKED_S) as talk:
                    return talk.hear(_ASKED_S) or {}
            except TimeoutError as exc:
                if not left:
                    raise AskError(f"{self.name} didn't answer within {_ASKED_S:.0f} s") from exc
            except AskError as exc:
                left += _comes(exc, began)
                if not left or not self._may_go_on(exc):
                    raise self._refused(exc) from exc
        raise AskError(f"{self.name} didn't answer")

    @property
    def _nodes(self) -> Talks:
        return able(self._backend, Talks, "send", self.info.address)

    def _lead(self, state: JobState) -> int:
        lead = turns.lead(state)
        assert lead is not None  # or it wouldn't be ready
        return lead

    def _refused(self, exc: AskError) -> NBTorchJobError:
        state = self.state
        if state.phase.terminal:
            return self._ended(state)
        return SubmitError(f"{self.name}: {exc}")

    def _ended(self, state: JobState) -> JobEndedError:
        again = hint("pool", self.name) if self.info.is_pool else f"--keep {self.name}"
        return JobEndedError(f"{self.name} has ended{attempts.ended(state)}: start another one with {again}")

    def _ready(self, say: Callable[[str], object] = lambda text: None) -> JobState:
        """Wait until the lab has ranks, and return its state then."""
        began, previous = time.monotonic(), ""
        while True:
            state = self.state
            if not state.suspended or time.monotonic() > began + _RESUMED_S:
                python = capture.PYTHON
                if state.phase.terminal:
                    raise self._ended(state)
                if not PLACES[self.info.backend].remote and self.info.python not in ("", python):
                    raise SubmitError(
                        f"{self.name} runs Python {self.info.python}, but this is Python {python}"
                    )
                if state.suspended and state.queued is None:  # a queue gives the nodes back by itself
                    raise SubmitError(f"{self.name} is suspended: run {hint('resume', self.name)} first")
                if state.lab_ends is not None and state.lab_ends.time > _began(state):
                    why = attempts.WHY.get(state.lab_ends.why, "")
                    raise JobEndedError(f"{self.name} is ending ({why}) and accepts no more {self._noun}s")
            if turns.lead(state) is not None:
                return state
            if queued := lifetime.waits(state):
                doing = f"is {queued[0].partition(': ')[2]}"
            else:
                anew = turns.ranks(state) and state.nodes
                doing = "is restarting" if anew else f"is {state.phase.word}"
            if doing != previous and time.monotonic() > began + _QUIET_S:
                previous = doing
                say(f"Waiting for {self.name}, which {doing}")
            time.sleep(_LOOK_S)

    def _await_turn(self, id_: str) -> tuple[int, TurnTaken] | None:
        until = time.monotonic() + _TOLD_S
        while True:
            turn = turns.sent(self.state, id_)
            if turn is not None or time.monotonic() > until:
                return turn
            time.sleep(_LOOK_S)

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, type_: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        if exc is None:
            self.job.wait()

    def __repr__(self) -> str:
        state = self.state
        doing = attempts.doing(state, time.time()) or facts.status(state, time.time()).lower()
        return f"<Lab {self.name} {doing} on {self.info.backend}>"


def newest(backend: Backend, info: JobInfo, name: str) -> JobInfo:
    """Return the record of a lab or pool; if the given one has ended, that of the name's newest run."""
    if info.name == name and (info.lab is None or Lab(backend, info).state.phase.terminal):
        return backend.info(newest_run(backend, name).info.address)
    return info


def ranks_of(rank: int | str | Iterable[int] | None) -> tuple[int, ...]:
    """Return the ranks that ``"0,2"``, ``"1-3"`` or numbers name; for None none, which means all."""
    if rank is None:
        return ()
    if isinstance(rank, int) and not isinstance(rank, bool):
        rank = str(rank)
    if isinstance(rank, str):
        try:
            return words.parse(rank)
        except words.SpansError:
            raise SpecError("rank", rank, "a rank, or several: 0, 0,2 or 1-3") from None
    numbers = (rank,) if isinstance(rank, bool) else tuple(rank)
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or number < 0:
            raise SpecError("rank", number, "the number of a rank")
    if not numbers:
        raise SpecError("rank", [], "a rank, or several: None means all")
    return tuple(sorted(set(numbers)))


def _elsewhere(exc: AskError) -> bool:
    """Whether the node that was asked isn't the lead any more."""
    return ELSEWHERE.partition("%")[0] in str(exc)


def _anew(exc: AskError) -> bool:
    """Whether the ranks were restarted, or are just being started."""
    return any(phrase in str(exc) for phrase in (ANEW, NOT_YET))


def _comes(exc: AskError, began: float) -> bool:
    """Whether the node that was asked has no ranks yet, or another one may be about to take its place."""
    return _anew(exc) or (exc.absent and time.monotonic() < began + _BEGINS_S)


def _began(state: JobState) -> float:
    times = [w.time for node in state.nodes.values() for w in node.workers if w.round == state.round]
    return max(times, default=0.0)


def why_not(state: JobState, name: str, ranks: Sequence[int]) -> str:
    """Say why a lab's ranks don't have a name that an earlier cell set; "" if none did."""
    for turn in reversed(turns.turns(state)):
        if not turn.fact.text or name not in _sets(turn.fact.text, turn.fact.filename):
            continue
        if turn.fact.base != state.round:
            at = words.clock(_began(state), time.time())
            return f"was set by {turn.name} before the ranks restarted at {at}"
        if turn.stage is Stage.FAILED:
            return f"would have been set by {turn.name}, which failed"
        if not turn.over:
            return f"is set by {turn.name}, which is still running: run this cell after it"
        turn_ranks = set(turn.fact.ranks)
        if not set(ranks or turns.ranks(state)) <= turn_ranks:
            spelled = words.ranks(turn_ranks)
            return f"was set by {turn.name} on {spelled} only: --rank {spelled.partition(' ')[2]}"
    return ""


def known_names(state: JobState) -> frozenset[str]:
    """Return the names that a lab's cells have set."""
    return frozenset[str]().union(
        *(_sets(turn.fact.text, turn.fact.filename) for turn in turns.turns(state) if turn.fact.text)
    )


@lru_cache(maxsize=8192)  # each new cell looks at all of a lab's cells, and its state keeps that many
def _sets(text: str, filename: str) -> frozenset[str]:
    try:
        return cells.parse(text, filename).sets
    except (SyntaxError, NBTorchJobError):
        return frozenset()
