"""Changes a running job's code: refuses changes that can't be made, and sends others to its nodes.

The nodes agree among themselves (``runtime/node/swaps``), so this process may end at any moment.
"""

from __future__ import annotations

import ast
import builtins
import io
import keyword
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

from nbtorchjob import capture
from nbtorchjob.backends import backend, naming, stacks
from nbtorchjob.backends.base import Backend, Signs, Talks, able
from nbtorchjob.backends.talk import Talk
from nbtorchjob.capture import RankNames, cells, identity
from nbtorchjob.errors import AskError, JobEndedError, NBTorchJobError, SpecError, SwapError
from nbtorchjob.frozen import FrozenDataclass
from nbtorchjob.payload import archive
from nbtorchjob.runtime.api.points import ADDED, LATER, REBOUND, REPLACED, SAME, merged
from nbtorchjob.runtime.facts.errors import Error
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import JobInfo, JobState, Origin, Phase, turns
from nbtorchjob.state.facts.events import Swapped
from nbtorchjob.state.info import MARK
from nbtorchjob.state.text.swaps import as_swapped
from nbtorchjob.state.text.tracebacks import frames_text, summary
from nbtorchjob.swapping import code
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint

_ASKED_S = 10.0
_TAKEN_S = 60.0  # for a node to accept a payload
_MORE_S = 45.0  # for nodes to answer, once a swap's own time is over
_TOLD_S = 5.0  # for the event of a swap to arrive
_MOST_WITHIN_S = 86_400.0
_MOST_SENT = 3  # times: ranks may turn out to lack what the notebook has
_MOST_TEXT = 1 << 16  # characters of a cell, and of a diff, that are recorded
_NO_POINT = (
    "ranks change at a call that all of them make, of swap_point(), leaving() or report(), and %s made none: "
    "call `nbtorchjob.swap_point()` once a step on each"
)
_WHY: Mapping[str, str] = {
    "absent": "the new code didn't reach all nodes",
    "leaves": "one of its nodes is about to end",
    "over": "a rank has ended or returned",
    "unable": "a rank can't change its code",
}
_HOWS: Mapping[str, str] = {
    REPLACED: "replaced",
    ADDED: "added",
    LATER: "replaced; it is running, so from its next call on",
    REBOUND: "replaced by name only: existing references keep the old one",
    SAME: "unchanged",
}


class SwapAnswer(FrozenDataclass):
    """The outcome of a swap: how each name's value changed, and at which call; ``step`` is the job's."""

    job: str
    names: Mapping[str, str]
    point: str
    call: int
    step: float | None = None
    compiled: bool = False
    unkept: str = ""  # why an attempt on new nodes starts without the swap

    def __str__(self) -> str:
        at = f" (step {words.number(self.step)})" if self.step is not None else ""
        head = f"{self.job}: swapped on all ranks at call {self.call:,} of {self.point}{at}"
        rows = words.columns([(f"  {name}", _HOWS.get(how, how)) for name, how in self.names.items()])
        anew = (
            ["  What torch.compile has compiled is compiled anew at its next call."] if self.compiled else []
        )
        lost = [f"  An attempt on new nodes begins without it: {self.unkept}"] if self.unkept else []
        return "\n".join([head, *rows, *anew, *lost])


def swap(
    chosen: Backend,
    state: JobState,
    text: str,
    namespace: dict[str, Any],
    *,
    settings: Mapping[str, Any] = MappingProxyType({}),
    filename: str = "<torchjob swap>",
    root: Path | None = None,
    origin: Callable[[capture.Call], Origin] = lambda call: Origin(),
    or_back: bool = False,
    within: float = 60.0,
    say: Callable[[str], object] = lambda text: None,
) -> SwapAnswer:
    """Change the code of a running job to what the definitions in ``text`` say, on all ranks at one call.

    If ``text`` is a whole cell of the job, only definitions that differ from what the job runs count. Names
    that they read are taken from ``namespace`` where the ranks lack them. ``settings`` are values of
    optimizers, by paths such as ``optimizer.lr``. With ``or_back`` the old code is put back on all ranks if
    the first call of the new one raises on any. Raises ``SwapError`` with the reason if the code stays as it
    was, and ``CaptureError`` and ``SyntaxError`` before anything is sent.
    """
    seconds = _checked(state, within)
    job_code = code.of(state)
    if text.strip() or not settings:
        text = job_code.definitions_in(cells.parse(text, filename).text, state.name)
    assigned = [f"{path} = {value!r}" for path, value in settings.items()]
    shown = "\n".join(filter(str.strip, (text, *(f"# {line}" for line in assigned))))
    diff = "\n".join(filter(None, (job_code.diff(text), *(f"+{line}" for line in assigned))))
    # A payload needs a cell, if only one that does nothing.
    cell = cells.parse(text if text.strip() else repr(shown), filename)
    cells.check_defines(cell)
    job_code.refuse(cell.text, state.name)
    without: set[str] = set()  # names that the ranks turned out to lack
    remote = state.info.jobspec.remote
    for _ in range(_MOST_SENT):
        reads = {read.name for read in cell.reads if not read.guarded and not hasattr(builtins, read.name)}
        rank_names = {name for name in reads if name in job_code.names or name not in namespace} - without
        call = capture.from_cell(
            cell.text,
            namespace,
            filename=filename,
            root=root,
            rank_names=RankNames(frozenset(rank_names)),
            swaps=True,
        )
        for note in call.notes:
            say(f"Note: {note}")
        answer = _Sender(chosen, state, seconds).send(
            call,
            {
                "sets": sorted(cell.sets - {"__doc__"}),
                "settings": dict(settings),
                "assumes": sorted(rank_names - cell.sets),
                "stops": call.stops,
                "in_place": [local.path for local in call.files if local.elsewhere and not remote],
                "or_back": or_back,
                "within": seconds,
                "by": identity.owner(call, origin(call)),
                "text": shown[:_MOST_TEXT],
                "diff": diff[:_MOST_TEXT],
            },
        )
        lacks = {name for name in answer.get("lacks", ()) if name in namespace} - without
        without |= lacks
        if not lacks:
            break
    return _answered(chosen, state, answer)


def swap_job(info: JobInfo, text: str, namespace: dict[str, Any], **options: Any) -> SwapAnswer:
    """Do what :func:`swap` does, for a job given by its record; for a lab's cell, swap the lab's code."""
    address = info.address.rpartition(MARK)[0] if info.of_lab else info.address
    chosen = backend(info.backend)
    return swap(chosen, naming.unreplaced(info, chosen.snapshot(address)), text, namespace, **options)


def _checked(state: JobState, within: object) -> float:
    """Return the seconds that ranks have to reach one call; raises if these or the job rule out a swap."""
    if not isinstance(within, int | float) or isinstance(within, bool) or not 0 < within <= _MOST_WITHIN_S:
        raise SpecError("within", within, "a number of seconds, at most a day")
    name = state.name
    if state.phase.terminal:
        raise JobEndedError(f"{name} has ended: its code can't be changed any more")
    running = turns.running(state) if state.info.lab is not None else []
    if state.info.is_pool and len(running) > 1:
        raise SwapError(
            f"{name} runs several jobs: name one of them, such as {name}{MARK}{running[0].number}"
        )
    if state.info.lab is not None and not running:
        raise SwapError(f"{name} is idle: run the cell on it, with --on {name}")
    if state.phase is not Phase.RUNNING or not state.members:
        raise SwapError(f"{name} is {state.phase.value.lower()}: its code can be swapped once its ranks run")
    return float(within)


class _Sender:
    """Sends a payload to all nodes, and receives their answers."""

    def __init__(self, chosen: Backend, state: JobState, within: float) -> None:
        self._backend = chosen
        self._address = state.info.address
        self._state = state
        self._nodes = [node.index for node in state.members]
        self._within = within
        self._talks: list[Talk] = []
        self._sent: set[int] = set()  # nodes that may have the payload
        self._lock = threading.Lock()

    def send(self, call: capture.Call, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the nodes' answer; raises ``SwapError`` if a node doesn't accept the payload."""
        id_, file = f"s{secrets.token_hex(8)}", io.BytesIO()
        spec: JobSpec = self._state.info.jobspec
        archive.write_swap(
            file,
            call,
            able(self._backend, Signs, "swap", self._address).key(self._address),
            {**request, "id": id_},
            remote=spec.remote,
        )
        question = {"question": "swap", "id": id_, "size": file.getbuffer().nbytes}
        # The object that keeps the swap outside its nodes, if there is one, or why it can't be kept.
        try:
            keeper, unkept = self._backend.swap_keeper(self._address), ""
        except NBTorchJobError as exc:
            keeper, unkept = None, str(exc)
        pool = ThreadPoolExecutor(len(self._nodes), "swap")  # a node answers only once all have the payload
        try:
            under_way = [pool.submit(self._to, node, question, file.getbuffer()) for node in self._nodes]
            answers, trouble = [], []
            for node, sent in zip(self._nodes, under_way, strict=True):
                try:
                    answers.append(sent.result())
                except (AskError, TimeoutError, OSError) as exc:
                    trouble.append((node, exc))
                    if self._lacks_it(node, exc):
                        self._leave()
        except BaseException:
            self._leave()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        answer = self._together(id_, answers, trouble)
        if keeper is not None and answer.get("outcome") == "swapped":
            earlier = {event.number for event in as_swapped(self._state) if event.number < answer["number"]}
            try:
                keeper.keep(answer["number"], file.getvalue(), earlier)
            except NBTorchJobError as exc:
                unkept = str(exc)
        return {**answer, "unkept": unkept}

    def _to(self, node: int, question: Mapping[str, Any], data: memoryview) -> dict[str, Any]:
        talk = able(self._backend, Talks, "swap", self._address).talk(self._address, node, question, _ASKED_S)
        with self._lock:
            self._talks.append(talk)
        with talk:
            talk.send_all(data)
            self._sent.add(node)
            talk.hear(_TAKEN_S)
            return talk.hear(self._within + _MORE_S) or {}

    def _lacks_it(self, node: int, exc: BaseException) -> bool:
        """Whether a node that gave no answer is sure to lack the payload, so that no node swaps."""
        return node not in self._sent or (isinstance(exc, AskError) and exc.said)

    def _leave(self) -> None:
        with self._lock:
            for talk in self._talks:
                talk.close()

    def _together(
        self, id_: str, answers: Sequence[dict[str, Any]], trouble: Sequence[tuple[int, BaseException]]
    ) -> dict[str, Any]:
        """Combine the nodes' answers; if none is conclusive, the job's events tell what the nodes did."""
        name = self._state.name
        done = [answer for answer in answers if answer.get("outcome")]
        decided = done or [answer for answer in answers if answer.get("why") and not answer.get("unknown")]
        for node, exc in trouble:
            if not decided and self._lacks_it(node, exc):
                why = str(exc) or f"no answer for {_TAKEN_S:.0f} s"
                if "knows no question" in why:
                    why = "its ranks call no swap_point(), leaving() or report(), or run an older version"
                raise SwapError(f"{name}: nothing was swapped, as node {node} can't take it: {why}")
        if not decided:
            fact = self._wait_for_fact(id_)
            if fact is not None:
                outcome = "back" if fact.back else "swapped"
                as_answer = {
                    "outcome": outcome,
                    "number": fact.number,
                    "names": dict(fact.names),
                    "point": fact.point,
                    "call": fact.call,
                    "metrics": dict(fact.metrics),
                }
                return {**as_answer, "troubles": [], "unreached": []}
            why = next((f" (node {node}: {str(exc) or 'no answer'})" for node, exc in trouble), "")
            raise SwapError(
                f"{name}: it isn't known whether its code was swapped{why}; {hint('describe', name)} tells"
            )
        together: dict[str, Any] = {**decided[0]}
        together["unreached"] = [f"node {node}: {str(exc) or 'no answer'}" for node, exc in trouble]
        for key in ("errors", "troubles", "lacks", "late", "silent"):
            together[key] = [item for answer in answers for item in answer.get(key, ())]
        together["metrics"] = next((a["metrics"] for a in answers if a.get("metrics")), {})
        together["compiled"] = any(answer.get("compiled") for answer in answers)
        return {**together, "names": merged(answer.get("names", {}) for answer in answers)}

    def _wait_for_fact(self, id_: str) -> Swapped | None:
        until = time.monotonic() + _TOLD_S
        while True:
            with suppress(NBTorchJobError):
                for fact in self._backend.snapshot(self._address).swaps:
                    if fact.id == id_:
                        return fact
            if time.monotonic() > until:
                return None
            time.sleep(0.2)


def _answered(chosen: Backend, state: JobState, answer: Mapping[str, Any]) -> SwapAnswer:
    """Return what was swapped; raises ``SwapError`` with the reason if nothing was."""
    name, why = state.name, answer.get("why", "")
    if answer.get("outcome") == "swapped":
        step = answer.get("metrics", {}).get("step")
        compiled = answer.get("compiled", False)
        names, point, call = answer["names"], answer["point"], answer["call"]
        return SwapAnswer(name, names, point, call, step, compiled, answer["unkept"])
    back = answer.get("outcome") == "back"
    nothing = f"{name}: the old code was put back on all ranks" if back else f"{name}: nothing was swapped"
    for failed in answer.get("errors", ()):
        error = Error.from_json(failed["error"])
        trace = frames_text(error, dict(state.info.sources).get) if error.frames else ""
        raise SwapError(
            "\n".join(filter(None, (f"{nothing}, as rank {failed['rank']} raised {summary(error)}", trace)))
        )
    if back:
        raise SwapError(f"{nothing}, as the first call of the new one failed")
    if why == "late":
        who = words.ranks(answer["late"]) if answer["late"] else "not all ranks"
        reason = f"{nothing}: {who} didn't reach the call at which the others waited"
        with suppress(NBTorchJobError):  # where they are, as for a hang
            reason += f"\n{stacks.ask(chosen, state, 5.0)}"
        raise SwapError(f"{reason}; {hint('stacks', state.name)} shows where each is")
    if why == "no point":
        who = words.ranks(answer["silent"]) if answer["silent"] else "some"
        raise SwapError(f"{nothing}: {_NO_POINT % who}")
    reasons = answer["troubles"] or [_WHY.get(why, why) or "its nodes gave no reason", *answer["unreached"]]
    raise SwapError(f"{nothing}: {'; '.join(reasons)}")


def values(pairs: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the definitions of plain values, given as texts, and the values of optimizers, by their paths.

    Raises ``SwapError`` for anything else.
    """
    lines: list[str] = []
    settings: dict[str, Any] = {}
    for name, text in pairs.items():
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            raise SwapError(f"{name}={text}: expected a plain value, such as 1e-4, True or 'adam'") from None
        owner, dot, key = name.rpartition(".")
        if not key.isidentifier() or keyword.iskeyword(key) or (dot and not owner.isidentifier()):
            raise SwapError(f"{name}={text}: expected NAME=VALUE, or optimizer.NAME=VALUE")
        if dot and type(value) not in (bool, int, float, tuple):
            raise SwapError(f"{name}={text}: expected a number, or a tuple of numbers")
        if dot:
            settings[name] = value
        else:
            lines.append(f"{name} = {text}")
    return "\n".join(lines), settings
