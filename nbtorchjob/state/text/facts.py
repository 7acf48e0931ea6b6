"""A job's state in words: the sentences that the card and the plain text share.

The text is clean (``words.clean``) and bounded, but not escaped.
"""

from __future__ import annotations

import math
import re

from nbtorchjob.state import BudgetUse, Failure, JobInfo, JobState, Node, Phase
from nbtorchjob.state import failure as causes
from nbtorchjob.state.facts.events import (
    FAILURE,
    NodeExited,
    RankExited,
    RankFailed,
    RankStops,
)
from nbtorchjob.state.failure import Cause, Reason, table
from nbtorchjob.state.progress import hang, missed, still
from nbtorchjob.state.runs import STOPPED
from nbtorchjob.state.text import attempts, lifetime, swaps, usage
from nbtorchjob.state.text.hang import describe
from nbtorchjob.state.text.lifetime import stillness
from nbtorchjob.state.text.tracebacks import summary
from nbtorchjob.text.hints import hint
from nbtorchjob.text.words import (
    DOT,
    LINE,
    TIMES,
    clean,
    clip,
    count,
    duration,
    elide,
    line,
    ranks,
    size,
)

QUEUED, STALLED, LEAVING, DEBUGGING = "QUEUED", "STALLED", "LEAVING", "DEBUGGING"
HUNG, RETRYING, DELETED, WAITING = "HUNG", "RETRYING", "DELETED", "WAITING"
# The words for states that a user should act on, or know of.
ATTENTION = frozenset((HUNG, STALLED, LEAVING, DEBUGGING, RETRYING, WAITING))
MAX_GROUPS = 8
_NOTABLE = ("torch", "numpy", "transformers", "lightning", "accelerate", "peft")  # distributions
_MOST_FILES = 6
_MAX_WAITS = 4
_MAX_STOPS = 4
_MAX_WAIT = 200
_WAITED_S = 10.0  # a pool, or a pod on a host that has its image, may take that long to start
_MAX_READ = 4_000
_MAX_OUTPUT = 10
_MAX_NOTICES = 3
_MAX_TEXT = 300
_MAX_WHY = 120
_MAX_GROUP = 120


def phase(state: JobState) -> str:
    """Return the phase in a word."""
    if state.cancelled is not None and not state.phase.terminal:
        return "CANCELLING"
    if state.stopped_early:
        return STOPPED
    if state.deleted:
        return DELETED
    if state.queued is not None and not state.working:
        return QUEUED
    if state.suspended:
        return "SUSPENDED"
    if state.blocked is not None:
        return WAITING
    if state.stopped:
        return DEBUGGING
    if state.next is not None:
        return RETRYING
    return state.phase.value if state.leaving is None else LEAVING


def status(state: JobState, now: float) -> str:
    """Return the phase in a word; for a running job, also whether it hangs or has stalled."""
    if state.cancelled is None and not state.stopped:
        diagnosis = hang(state, now)
        if diagnosis is not None and not diagnosis.slow:
            return HUNG
        silence = still(state, now)
        if silence is not None and silence.stalled:
            return STALLED
    return phase(state)


def where(info: JobInfo) -> str:
    """Describe where a job runs: ``local``, ``kubernetes: pytorchjob in ml``."""
    if not info.cluster:
        return line(info.backend, 40)
    context = f", context {info.cluster['context']}" if info.cluster.get("context") else ""
    inside = f"{info.cluster.get('kind')} in {info.cluster.get('namespace')}{context}"
    return line(f"{info.backend}: {inside}", 120)


def origins(state: JobState) -> list[str]:
    """Return a line for each known origin of a job: its image, notebook, commit and swaps."""
    info = state.info
    image = [line(f"image {state.image}", LINE)] if state.image else []
    cell = f", cell {info.cell}" if info.cell else ""
    notebook = [line(f"notebook {info.notebook}{cell}", LINE)] if info.notebook else []
    events = swaps.as_swapped(state)
    changed = [f"code as swapped, {count(len(events), 'time')}: see describe"] if events else []
    if state.checkout:
        fact = state.checkout
        branch = f" on {fact.branch}" if fact.branch else ""
        checkout_changed = len(fact.changed) + fact.more
        files = ", ".join(fact.changed[:_MOST_FILES]) + (" …" if checkout_changed > _MOST_FILES else "")
        since = (
            f"with {count(checkout_changed, 'file')} changed since: {files}"
            if checkout_changed
            else "nothing changed since"
        )
        checkout = [line(f"commit {fact.commit}{branch}, {since}", LINE)]
    else:
        checkout = []
    return [*image, *notebook, *checkout, *changed]


def annotated(state: JobState) -> str:
    """Return a person's tags and note, ``#baseline #v2 · the one to beat``; "" where there are none."""
    fact = state.annotated
    if fact is None:
        return ""
    tags = " ".join(f"#{tag}" for tag in fact.tags)
    return line(DOT.join(filter(None, (tags, fact.note))), LINE)


def environment(state: JobState) -> list[str]:
    """Describe what its ranks can import: Python, the most notable distributions, and how to list all."""
    fact = state.importable
    if fact is None:
        return []
    versions = {**fact.distributions, **fact.installed}
    named = [f"{name} {versions[name]}" for name in _NOTABLE if name in versions]
    such = f", among them {', '.join(named)}" if named else ""
    added = ", ".join(f"{name} {version}" for name, version in fact.installed.items())
    every = hint("lock", line(state.info.name, 80))
    return [
        line(f"Python {fact.python} on {fact.platform}", LINE),
        *([line(f"installed for it: {added}", LINE)] if added else []),
        line(f"{count(len(versions), 'distribution')}{such}; all of them: {every}", LINE),
    ]


def shape(state: JobState) -> str:
    """Return nodes and ranks: ``2 nodes x 4 ranks``, ``2 of up to 4 nodes x 1 rank``."""
    fewest, most = state.info.nodes
    if state.info.of_lab and 0 < len(state.info.turn) < state.world_size:
        return f"{ranks(state.info.turn)} of {state.world_size}"
    requested = count(most, "node") if fewest == most else f"{fewest} to {most} nodes"
    now = len(state.members)
    nodes = f"{now} of up to {most} nodes" if fewest != most and now else requested
    return f"{nodes} {TIMES} {count(state.info.nproc_per_node, 'rank')}"


def counts(state: JobState) -> str:
    """Return ``attempt 3 · restarts 1/3 · failures 1/3 · preemptions 4/unlimited``, as far as there are any.

    Restarts are torch's own, of all ranks in place, in the newest attempt.
    """
    attempt_count, most = len(state.attempts), state.info.max_restarts
    parts = [f"attempt {state.attempts[-1].number}"] if attempt_count > 1 else []
    parts += [f"restarts {state.restarts}/{most}"] if most else []
    return DOT.join([*parts, *map(budget, state.budgets)])


def budget(spent: BudgetUse) -> str:
    """Return ``failures 1/3`` or ``preemptions 4/unlimited``."""
    return f"{spent.budget.value} {spent.used}/{limit(spent)}"


def limit(spent: BudgetUse) -> str:
    """Return how much a budget allows: ``3``, ``unlimited``."""
    return f"{spent.limit:g}" if math.isfinite(spent.limit) else "unlimited"


def reforming(state: JobState) -> str:
    """Describe which nodes left and that the others go on; empty if none left, or the others can't go on."""
    fewest, most = state.info.nodes
    if not state.reforming or (fewest == most and not state.info.max_restarts):
        return ""
    lost_nodes = ", ".join(host(n) for n in state.members if n.left)
    return clip(f"{lost_nodes} left; the other nodes are forming the next round", _MAX_TEXT)


def leaving(state: JobState, now: float) -> str:
    """Describe which node is about to end, and how long ranks have to save; empty unless one is."""
    notice = state.leaving
    if notice is None:
        return ""
    node = host(state.nodes.get(notice.node, Node(notice.node)), notice.time)
    left = max(0.0, notice.time + notice.seconds - now)
    why = f": {line(notice.why, _MAX_WHY)}" if notice.why else ""
    # A table row may show only the first words.
    return f"ranks have {duration(left)} to save: {node} is about to end{why}"


def hanging(state: JobState, now: float) -> str:
    """Describe which ranks the others of a running job wait for; empty unless it is known to hang."""
    diagnosis = hang(state, now) if not state.stopped else None  # waiting for a stopped rank is no hang
    return f"{describe(diagnosis)} (seen {age(diagnosis.time, now)})" if diagnosis is not None else ""


def age(time: float, now: float) -> str:
    """Return how long ago something was: ``17 s ago``; ``now`` within a second."""
    return f"{duration(now - time)} ago" if now - time >= 1 else "now"


def stops(state: JobState, now: float) -> list[str]:
    """Describe which ranks are stopped in the debugger, where, and how to get to them; a line for each."""
    name = line(state.info.name, 80)
    stopped = state.stopped
    lines = []
    for stop in stopped[:_MAX_STOPS]:
        look = hint("debug", name, "--rank", str(stop.rank))
        ways = f"{look}, or {hint('release', name)}" if stop.why == FAILURE else look
        lines.append(f"{stop_of(stop, state, now)}: {ways}")
    more = len(stopped) - _MAX_STOPS
    return [*lines, f"and {count(more, 'rank')} more"] if more > 0 else lines


_CELL_FILE = re.compile(r"<torchjob cell ([1-9][0-9]*)>")


def stop_of(stop: RankStops, state: JobState, now: float) -> str:
    """Return ``rank 1 stops at Cell In[3], line 7, in `step`, for 12 s``."""
    verb = "failed, and is held" if stop.why == FAILURE else "stops"
    label, _ = state.info.sources.get(stop.filename, ("", ""))
    # A lab's record only names the cells of its first turn; later ones are recognized by file name.
    source = label or _CELL_FILE.sub(r"Cell In[\1]", stop.filename.rpartition("/")[2])
    where = f"{source}, line {stop.lineno}"
    inside = f", in `{stop.function}`" if not stop.function.startswith("<") else ""
    text = f"rank {stop.rank} {verb} at {line(where, 80)}{line(inside, 80)}"
    return f"{text}, for {duration(max(0.0, now - stop.time))}"


def host(node: Node, time: float = math.inf) -> str:
    """Name a node, with its host at ``time`` where that is known, by default its last one."""
    start = node.life_at(time).start
    return f"node {node.index} ({line(start.host, 80)})" if start and start.host else f"node {node.index}"


def _blamed(index: int, failure: Failure, state: JobState) -> str:
    return host(state.nodes.get(index, Node(index)), failure.time)


def condition(node: Node, state: JobState) -> str:
    """Describe the node's condition in a few words."""
    life = node.life
    if life.waiting is not None:
        return life.waiting.text.partition(": ")[0]  # waiting() shows the rest
    if life.exit is not None and not life.ended_on_demand(life.exit):
        if node.code == 0:
            return "finished"
        return clip(_ended(life.exit, state).line, _MAX_GROUP)
    if life.disruption is not None:
        return causes.of_disruption(life.disruption).line
    if life.gone_at is not None:
        return "gone"
    if node.workers and node.round == state.round and node.working:
        if state.phase.terminal:
            return "was running"
        return "forming the next round" if state.reforming else "ending" if state.next else "running"
    if node.started is None:
        return "starting"
    if lifetime.installing(node, state):
        return "installing packages"
    if lifetime.fetching(node, state):
        return "fetching data"
    up = sum(other.started is not None and other.ended is None for other in state.nodes.values())
    return "waiting for the other nodes" if up < state.info.nodes[0] else "starting its ranks"


def _ended(exit_: NodeExited, state: JobState) -> Reason:
    """Explain how a node ended, by its agent's error where that is known."""
    for agent in state.agents:
        if (agent.node, agent.code, agent.pod) == (exit_.node, exit_.code, exit_.pod):
            return causes.of_agent_error(agent.code, agent.error)
    return causes.of_end(exit_)


def waiting(state: JobState) -> list[str]:
    """Explain why nodes don't run, and what to do about it; nodes that wait for the same share a line."""
    groups: dict[tuple[str, str], list[int]] = {}
    queued = lifetime.waits(state)
    for wait in state.waiting:
        if wait.holder:
            # Which job of this machine has the places that this one waits for, and the ways out
            name, holder = line(state.info.name, 80), line(wait.holder, 80)
            ways = f"{hint('cancel', holder)} ends that job"
            if not wait.exclusive:
                beside = "runs this one beside it, sharing the cores"
                ways += f"; {hint('start', name)} {beside}"
            queued += [elide(clean(wait.text), _MAX_WAIT), ways]
            continue
        remedy = causes.of_waiting(wait).hint
        text = elide(clean(wait.text[:_MAX_READ]), _MAX_WAIT)
        if wait.node is not None:
            # How the earlier lives ended, for a pod that is created again and again
            node = state.nodes[wait.node]
            ends = [life.exit for life in node.lives.values() if life is not node.life and life.exit]
            if ends:
                last = max(ends, key=lambda end: end.time)
                how = causes.of_end(last).line if last.code != 0 else "finished"
                text += f" (its pod {len(node.lives)}; the previous pod: {clip(how, _MAX_GROUP)})"
        groups.setdefault((text, remedy), []).append(-1 if wait.node is None else wait.node)
    lines = []
    for (text, remedy), nodes in groups.items():
        who = "the job" if -1 in nodes else ranks(nodes).replace("rank", "node")
        lines.append(clip(f"{who}: {text.rstrip('.')}. {remedy}".rstrip(), _MAX_TEXT))
    more = len(lines) - _MAX_WAITS
    return [*queued, *lines[:_MAX_WAITS], *([f"and {more} more"] if more > 0 else ())]


def took(state: JobState, now: float) -> str:
    """Return how long it ran, and how long it waited before if that was long: ``1.2 s``."""
    return ran(state.elapsed(now), None if state.first_start is None else state.waited(now))


def ran(elapsed: float, waited: float | None) -> str:
    """Return the same, given in seconds; ``waited`` is None for a job that still waits."""
    if waited is None or waited < _WAITED_S:
        return duration(elapsed)
    return f"{duration(elapsed - waited)}, waited {duration(waited)}"


def output(state: JobState) -> list[str]:
    """Return the last lines that pods wrote outside their ranks, for a failure that no rank reported."""
    failure = state.failure
    if failure is None or failure.rank is not None or failure.error is not None:
        return []
    if failure.reason.cause is Cause.CANCELLED:
        return []  # only what agents write when they are told to stop
    newest = [fact for fact in state.output if failure.node in (None, fact.node)]
    return [line(fact.text, LINE) for fact in newest[-_MAX_OUTPUT:]]


def heading(failure: Failure, state: JobState) -> str:
    """Describe in one line what failed and how; empty for a cancelled job, as the phase says so already."""
    if failure.reason.cause is Cause.CANCELLED and state.cancelled is not None:
        return line(f"stopped early: {state.early}", _MAX_TEXT) if state.early else ""
    if missing := missed(state, failure):
        return line(f"a collective gave up: {describe(missing)}", LINE)
    if failure.error:
        # An exception's summary; for an allocator's, how much more was requested
        match = _ASKED.search(failure.error.message[:_MAX_READ])
        if match is None:
            text = summary(failure.error)
        else:
            text = f"out of memory ({size(int(match[1])) if match[1] else match[2]} more requested)"
    else:
        text = failure.reason.line
    if failure.rank is not None:
        text = f"rank {failure.rank}: {text}"
    elif failure.node is not None:
        where = _blamed(failure.node, failure, state)
        why = f"{failure.reason.line}: {text}" if failure.error else text
        text = f"{where}: {why}"
    elif failure.reason.cause is not Cause.INFRA:
        text = f"the job {text}"
    return line(text, _MAX_TEXT)


# The messages of allocators: torch's for CUDA and for the CPU, and NumPy's.
_ASKED = re.compile(r"(?:[Tt]ried|Unable) to allocate (?:(\d+) bytes|([\d.]+ ?[KMGT]i?B))")


def cause(failure: Failure, state: JobState) -> str:
    """Describe whose fault it was and where it happened, and what to do about it."""
    again = _again(failure, state)
    # Whose fault a failure was, where the exception doesn't say it, and on which node it was
    certain = not again
    many = failure.rank is not None and failure.node is not None and len(state.nodes) > 1
    where = f"on {_blamed(failure.node, failure, state)}" if many and failure.node is not None else ""
    cause = failure.reason.cause
    if cause is Cause.USER and failure.error is not None and not failure.reason.hint and certain:
        same = "" if failure.error.recoverable else "; a retry would fail the same way"
        fault = f"{f'Your code raised this {where}'.rstrip()}{same}."
    elif cause in (Cause.USER, Cause.UNKNOWN) or (
        cause is Cause.CANCELLED and state.phase is not Phase.FAILED
    ):
        fault = f"{where.capitalize()}." if where else ""
    else:
        named = "external" if cause is Cause.CANCELLED else cause.value
        fault = f"Cause: {DOT.join(filter(None, (named, where)))}."
    hint, missing = failure.reason.hint, missed(state, failure)
    if missing and missing.sure:  # its line has already answered what the hint asks
        hint = table.KNOWN.get(hint, hint)
    words = (fault, hint, usage.before(failure, state), again)
    return line(" ".join(word for word in words if word), _MAX_TEXT)


def _again(failure: Failure, state: JobState) -> str:
    """Describe how to have the job retried automatically, if that wasn't requested."""
    if state.info.of_lab and not state.info.in_pool:
        return ""  # a cell isn't retried, only its lab is
    if failure.reason.cause is Cause.INFRA:
        # A job that was deleted, or lost its supervisor, is never retried.
        return "" if state.info.retry or state.lost else "--preemptions N retries it automatically."
    retried = state.info.retry is not None and state.info.retry.retries > 0
    asks = failure.error is not None and failure.error.recoverable
    return "The exception asks for a retry: set --retries N." if asks and not retried else ""


def beside(state: JobState) -> list[str]:
    """Name the newest attempt's failures after its first, the newest first; alike ones share a line."""
    groups: dict[tuple[int, str], set[int]] = {}
    newest = state.attempts[-1] if state.attempts else None
    first = newest.failure if newest else None
    since = (newest.start if newest else None) or 0.0
    events: list[RankFailed | RankExited] = [*state.errors, *state.exits]
    for event in sorted(events, key=lambda e: (-e.restart, _when(e), e.rank)):
        first_one = first is not None and (event.rank, _when(event)) == (first.rank, first.time)
        # What follows a cancellation is its effect on the ranks.
        if not first_one and since <= _when(event) < (state.cancelled or math.inf):
            if isinstance(event, RankFailed):
                end = clip(summary(event.error), _MAX_GROUP)
            elif event.signal:
                end = causes.of_signal(event.signal).line
            else:
                end = causes.of_exit(event.code or 0).line
            groups.setdefault((event.restart, end), set()).add(event.rank)
    lines = [
        (f"before restart {number + 1}, " if number != state.restarts else "") + f"{ranks(who)}: {how}"
        for (number, how), who in groups.items()
    ]
    more = len(lines) - MAX_GROUPS
    shown = [clip(text, _MAX_GROUP) for text in lines[:MAX_GROUPS]]
    return [*shown, f"and {more} more"] if more > 0 else shown


def _when(event: RankFailed | RankExited) -> float:
    return event.error.time if isinstance(event, RankFailed) else event.time


def result(state: JobState) -> str:
    """State that the value is ready, and its size; empty before that."""
    if state.phase is not Phase.SUCCEEDED or not state.values:
        return ""
    total = size(sum(value.size for value in state.values.values()))
    origin = f" from {count(len(state.values), 'rank')}" if state.info.all_ranks else ""
    return f"result ready{origin}: {total}"


def artifacts(state: JobState) -> str:
    """State what ranks left below ``artifacts_dir()``, and how to get it; empty if there is nothing."""
    if not state.artifacts:
        return ""
    tries = {number for number, _ in state.artifacts}
    newest = [sent for (number, _), sent in state.artifacts.items() if number == max(tries)]
    origin = f" of attempt {max(tries)}" if len(tries) > 1 else ""
    many, total = sum(sent.files for sent in newest), size(sum(sent.total for sent in newest))
    return f"{count(many, 'artifact')}{origin}, {total}: {hint('artifacts', line(state.info.name, 80))}"


def notices(state: JobState) -> list[str]:
    """Return the newest notices, the newest swap, and how many facts aren't believed."""
    texts = [line(notice.text, _MAX_TEXT) for notice in state.notices[-_MAX_NOTICES:]]
    texts += swaps.newest(state)
    if state.refused:
        many, first = len(state.refused), state.refused[0].why
        texts.append(line(f"Ignored {count(many, 'invalid fact')} from this job ({first})", _MAX_TEXT))
    return texts


def ships(state: JobState) -> str:
    """Describe what runs and what was sent with it."""
    parts = (line(state.info.full_label, 120), line(state.info.ships, _MAX_TEXT))
    return DOT.join(part for part in parts if part)


def last_line(state: JobState, now: float) -> str:
    """Return the state in one line, without its metrics."""
    link = {Phase.SUCCEEDED: "in", Phase.FAILED: "after", Phase.CANCELLED: "after"}
    lasted = f"{link.get(state.phase, 'for')} {took(state, now)}"
    if status(state, now) == STALLED:
        lasted += ", stalled"
    location = where(state.info) if state.info.cluster else ""
    name = line(state.info.name, 80)
    activity = attempts.doing(state, now) or stillness(state, now)
    parts = (f"{name} {phase(state).lower()} {lasted}", activity, shape(state), counts(state), location)
    return DOT.join(part for part in parts if part)
