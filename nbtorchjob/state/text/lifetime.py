"""The time before, during and after a run, in words: queues, the start, progress, deadlines, removal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nbtorchjob.state import JobState, Node, Phase, turns
from nbtorchjob.state import failure as causes
from nbtorchjob.state.facts import events as ev
from nbtorchjob.state.progress import PERCENT, REPORT, Progress, held_back, held_since, progress, still
from nbtorchjob.text.hints import hint
from nbtorchjob.text.words import DOT, LINE, about, clean, clip, clock, count, duration, line, number, size

_MAX_TEXT = 300
_MAX_READ = 4_000
_BYTES = ("memory", "ephemeral-storage")


def waits(state: JobState) -> list[str]:
    """Say where the job is queued, what it needs, and what to do about it; empty if it isn't queued."""
    queued = state.queued
    if queued is None and state.queue is not None and state.queue.held and state.suspended:
        queued = state.queue if state.queue.reason else None
    if queued is None or state.working:
        return []
    why = causes.of_queue(queued.reason, clean(queued.text[:_MAX_READ]))
    place = state.standing if not queued.admitted and not queued.held else None
    needs = []
    for name, amount in queued.needs.items():
        used = ""
        if place is not None and name in place.used:
            has, quota = (_amount(name, amounts.get(name, "")) for amounts in (place.used, place.quota))
            used = f", {has} of {quota} used" if quota else f", {has} used by jobs of its queue"
        unit = "GPUs" if name.endswith("/gpu") else clean(name)
        needs.append(f"{_amount(name, amount)} {unit}{used}")
    if place is not None and place.place:
        ends = {1: "st", 2: "nd", 3: "rd"} if place.place % 100 not in (11, 12, 13) else {}
        nth = f"{place.place}{ends.get(place.place % 10, 'th')}"
        ahead = f": {nth} of {place.of}"
    else:
        ahead = ""
    parts = [
        f"queued in {clean(queued.queue)}{ahead}" if not queued.held else "suspended",
        f"needs {' and '.join(needs)}" if needs and not queued.held else "",
        why.line,
    ]
    text = "; ".join(part.rstrip(".") for part in parts if part)
    return [clip(f"the job: {text}. {why.hint}".rstrip(), _MAX_TEXT)]


def hold_reason(state: JobState) -> str:
    """Say what keeps the queue of a cancelled or suspended job from starting it again; "" if nothing does.

    Suspending it isn't enough: the queue undoes that.
    """
    queue = state.queue
    if queue is None or not (state.cancelled is not None or state.suspended):
        return ""
    if state.removed is not None:
        return "it was deleted from the cluster; its record and logs are on this machine"
    if queue.held and queue.reason:
        return "its Workload is deactivated, so its queue doesn't start it again"
    if state.verdict is not None and state.verdict.reason == causes.DEADLINE_EXCEEDED:
        return "it was given a deadline that has passed, so its queue can't start it again"
    if queue.held and not queue.admitted:  # its label may have been changed just as it was admitted
        return f"its label names {clean(queue.queue)}, a queue that doesn't exist, so it isn't admitted"
    return ""


def after_cancel(state: JobState) -> str:
    """Say what a cancelled cell of a lab still does, or what keeps a job from starting again; else ""."""
    if state.info.of_lab and not state.info.in_pool and not state.phase.terminal:
        return f"its ranks were interrupted, and {hint('stacks', state.info.name)} shows where they are"
    return hold_reason(state)


def _amount(resource: str, text: str) -> str:
    return size(int(text)) if resource in _BYTES and text.isdecimal() else clean(text)


_MAX_WHO = 200


def times(state: JobState, enforced: Mapping[str, str], now: float) -> list[str]:
    """Describe when the job was submitted and ended, when its deadline ends it, when it will be removed."""
    parts = [f"submitted at {clock(state.info.created, now)}"]
    parts += [f"ended at {clock(state.ended, now)}"] if state.ended is not None else []
    removed = removal(state, enforced.get("ttl_seconds_after_finished", ""), now)
    return [*parts, *filter(None, (deadline(state, now), patience(state, now), removed))]


def outlook(state: JobState, now: float, *, waited_for: bool) -> list[str]:
    """Describe when a running job was drawn, and how to follow and end it; nothing for an ended job.

    The drawing may be read much later. For a job that a cell waits for (``waited_for``), the way is to
    interrupt the kernel.
    """
    if state.phase.terminal:
        return []
    name, of_lab = line(state.info.name, 80), state.info.of_lab and not state.info.in_pool
    if waited_for and of_lab:
        ways = [f"interrupt the kernel to interrupt {name}, whose ranks stay"]
    elif waited_for:
        ways = [f"interrupt the kernel to stop waiting for {name}, twice to cancel it"]
    else:
        end = "interrupt" if of_lab else "cancel"
        ways = [f"{hint('attach', name)} to follow it", f"{hint('cancel', name)} to {end} it"]
    return [f"as of {clock(now)}", *ways]


def deadline(state: JobState, now: float) -> str:
    """Describe when the job's deadline ends it; empty for a job that has no deadline, or has ended."""
    most, at = state.info.deadline_s, state.deadline_at
    if most is None or state.phase.terminal:
        return ""
    if state.info.in_pool:
        return f"each attempt may run for {duration(most)}"
    if at is None:
        on_hold = state.suspended and (state.pause is None or state.pause.turn != ev.AWAITED)
        return f"once {'it is resumed' if on_hold else 'its turn has come'}, it may run for {duration(most)}"
    if at <= now:
        return f"its deadline passed at {clock(at, now)}, {duration(now - at)} ago"
    return f"ends at {clock(at, now)}, in {duration(at - now)}"


def patience(state: JobState, now: float) -> str:
    """Describe until when the job may be held back; empty if it isn't, or may be held back for ever."""
    wait, most = held_back(state), state.info.start_within_s
    began = held_since(state, wait) if wait is not None else None
    if most is None or began is None:
        return ""
    return f"fails at {clock(began + most, now)} unless it is running by then"


def removal(state: JobState, who: str, now: float) -> str:
    """Describe when the job will be removed, and by ``who``."""
    ttl, name = state.info.ttl_s, line(state.info.of_lab or state.info.name, 80)
    if state.removed is not None:
        return f"removed from its cluster at {clock(state.removed, now)}"
    if ttl is None:
        at_last = "" if state.info.cluster else ", or a week after it ends"
        return f"kept until {hint('delete', name)} or {hint('gc', '--yes')}{at_last}"
    if state.ended is None:
        text = f"removed {duration(ttl)} after it ends"
    elif state.ended + ttl <= now:
        text = f"due for removal since {clock(state.ended + ttl, now)}"
    else:
        text = f"removed in {duration(state.ended + ttl - now)}"
    return f"{text}, {line(who, _MAX_WHO)}" if who else text


def stored(state: JobState, folder: Path) -> list[str]:
    """Describe where the job's values and logs are; ``folder`` is the user's state directory."""
    if not state.info.cluster:
        job_folder = folder / "jobs" / (state.info.of_lab or state.info.name)
        return [line(f"logs and values in {job_folder} on this machine", LINE)]
    cluster = state.info.spec.get("cluster")
    storage = cluster.get("storage") if isinstance(cluster, Mapping) else None
    text = f"logs and values in the cluster while its pods exist; copies in {folder / 'kubernetes'}"
    return [text, *([f"payload and values in {line(f'{storage}', _MAX_WHO)}"] if storage else [])]


_NAMED = 3  # how many of the packages being installed are named
_MOST_NAME = 60  # characters of a name that a node reports: of a package, its installer, data or a place


def doing(state: JobState) -> str:
    """Describe what its nodes do until the call runs on all ranks; empty where unknown, or once it runs."""
    if state.phase.terminal or state.next is not None or state.suspended:
        return ""
    if state.info.of_lab and state.round < 0:
        return ""  # a turn: what it waits for is shown instead
    if state.round < 0:
        nodes = [node for node in state.nodes.values() if node.life.running]
        met = [node for node in nodes if state.met.get(node.index, 0.0) >= node.life.since]
        most = state.info.nodes[1]
        if not nodes:
            # A local job that doesn't wait for a place starts the pool first, which imports torch.
            return "" if state.info.cluster or state.nodes or state.waits else "importing torch"
        if len(met) < len(nodes):
            fetches = [fact for node in nodes if (fact := fetching(node, state)) is not None]
            packages = [install for node in nodes if (install := installing(node, state)) is not None]
            busy = len(fetches) or len(packages) or len(nodes) - len(met)
            if fetches:
                activity = _fetches(fetches)
            elif packages:
                largest = max((installed.packages for installed in packages), key=len)
                some = ", ".join(line(name, _MOST_NAME) for name in largest[:_NAMED])
                some += " and others" if len(largest) > _NAMED else ""
                activity = (
                    f"installing {count(len(largest), 'package')} ({some})"
                    if largest
                    else "choosing packages"
                )
            else:
                activity = "importing torch"
            return activity if len(nodes) == 1 else f"{activity} on {busy} of {len(nodes)} nodes"
        return f"meeting: {len(met)} of {most} nodes are there" if most > 1 else "starting ranks"
    began = {rank for rank, fact in state.began.items() if state.base(fact.round) == state.round}
    # Jobs run by an earlier version don't report this.
    if not state.met or len(began) >= state.world_size or state.ended is not None or state.reforming:
        return ""
    return f"starting ranks: {len(began)} of {state.world_size} run"


def installing(node: Node, state: JobState) -> ev.Installing | None:
    """Return what a node is installing now, if anything."""
    fact = state.installs.get(node.index)
    return fact if isinstance(fact, ev.Installing) and fact.time >= node.life.since else None


def fetching(node: Node, state: JobState) -> ev.Fetching | None:
    """Return the data that a node is fetching now, if any."""
    own = (fact for (index, _), fact in state.fetches.items() if index == node.index)
    facts = [fact for fact in own if fact.time >= node.life.since]
    newest = max(facts, key=lambda fact: fact.time, default=None)
    return newest if isinstance(newest, ev.Fetching) else None


def _fetches(fetches: Sequence[ev.Fetching]) -> str:
    """Describe the slowest of several nodes' fetches."""
    slowest = max(fetches, key=lambda fact: fact.size - fact.done)
    name = line(slowest.name, _MOST_NAME)
    if slowest.waits:
        return f"waiting for another node to fetch {name}"
    text = f"fetching {name}: {size(slowest.done)}"
    if slowest.size > 0:
        text += f" of {size(slowest.size)}"
        took, left = slowest.time - slowest.began, slowest.size - slowest.done
        came = slowest.done - slowest.had
        if came > 0 < took and left > 0:
            text += f", {about(took * left / came)} left"
    return text


def data(state: JobState) -> list[str]:
    """Describe the data that the job's nodes have, and where it is kept."""
    lines: dict[str, str] = {}
    for (_, name), fact in sorted(state.fetches.items()):
        if isinstance(fact, ev.Fetched) and name not in lines:
            how = "was there already" if fact.kept else f"fetched in {duration(fact.seconds)}"
            shown = f"{line(name, _MOST_NAME)}: {size(fact.size)} in {count(fact.files, 'file')}"
            lines[name] = f"{shown}, {how}, in {line(fact.place, _MOST_NAME)}"
    return [*lines.values()]


def steps(state: JobState) -> list[tuple[str, str]]:
    """Return the steps before the call ran in the first round, and how long each took.

    Only a node's newest preparations are known: if it was prepared again since, then only when it was ready.
    """
    info = state.info
    first = min((node.workers[0].round for node in state.nodes.values() if node.workers), default=None)
    workers = [w.time for node in state.nodes.values() for w in node.workers if w.round == first]
    ready = _last(workers)
    preparations = (*state.installs.values(), *state.fetches.values())
    facts = [fact for fact in preparations if ready is None or fact.time <= ready]
    met = [time for time in state.met.values() if ready is None or time <= ready]
    installed = [fact for fact in facts if isinstance(fact, ev.Installed)]
    most = max(installed, key=lambda fact: len(fact.packages), default=None)
    if most is None or not most.packages:
        step = "checking that all packages are installed"
    else:
        kept = f"with {line(most.by, _MOST_NAME)}" if most.by else "from an earlier job"
        step = f"installing {count(len(most.packages), 'package')} {kept}"
    ends = (
        ("submitting, and waiting for nodes", state.first_start),
        (step, _last(fact.time for fact in installed)),
        ("fetching data", _last(fact.time for fact in facts if isinstance(fact, ev.Fetched))),
        ("importing torch", _last(met)),
        ("meeting" if met else "preparing the nodes, and meeting", ready),
        ("starting ranks", _last(fact.time for fact in state.began.values() if fact.round == first)),
    )
    rows, before = [], info.created
    if info.packed:
        rows.append((f"packing {size(info.payload)}", duration(info.packed - info.began)))
        before = max(before, info.packed)
    for step, at in ends:
        if at is not None and at >= before:
            rows.append((step, duration(at - before)))
            before = at
    return rows


def _last(times: Iterable[float]) -> float | None:
    return max(times, default=None)


def advances(state: JobState) -> bool:
    """Whether its ranks go on now: it runs, isn't forming a round and, if it is a lab, isn't idle."""
    if state.phase is not Phase.RUNNING or state.reforming:
        return False
    return state.info.lab is None or turns.idle_since(state) is None


def progress_line(state: JobState, now: float) -> str:
    """Return :func:`describe_progress` for a running job, and how far it was for one that isn't running."""
    current = progress(state)
    if current is None:
        return ""
    if advances(state):
        return describe_progress(current, now)
    return "" if current.unit == REPORT else reached(current)


def stillness(state: JobState, now: float) -> str:
    """State that a running job has given no sign of life for a while: ``quiet for 2 min``; else empty.

    Also empty for a stalled job, as :func:`describe_progress` says so.
    """
    silence = still(state, now)
    return f"quiet for {about(now - silence.since)}" if silence is not None and not silence.stalled else ""


def describe_progress(progress: Progress, now: float) -> str:
    """Describe how far it is, and how fast or how long silent: ``3 of 10 epochs · 5 s per epoch``."""
    if progress.unit == REPORT:
        return overdue(progress, now)
    left = progress.left(now)
    parts = (
        reached(progress),
        f"about {duration(left)} left" if left is not None and math.isfinite(left) else "",
        overdue(progress, now) or rate(progress),
    )
    return DOT.join(part for part in parts if part)


def reached(progress: Progress) -> str:
    """Return ``3 of 10 epochs``, ``30 %``, or ``37 steps`` where it is unknown how many there will be."""
    many, unit = number(progress.done), progress.unit
    if unit == PERCENT:
        return f"{many} %"
    if progress.total is not None:
        return f"{many} of {number(progress.total)} {unit}s"
    return f"{many} {unit}" if progress.done == 1 else f"{many} {unit}s"


def overdue(progress: Progress, now: float) -> str:
    """Describe for how long nothing was reported, and what is usual; empty unless it is longer than usual."""
    silent = progress.overdue(now)
    if silent is None or progress.every is None:
        return ""
    if progress.told_each and progress.pace is not None:
        a_unit = f"an {progress.unit}" if progress.unit[0] in "aeiou" else f"a {progress.unit}"
        return f"no {progress.unit} for {duration(silent)}; {a_unit} took {duration(progress.pace)}"
    return f"no report for {duration(silent)}; one came every {duration(progress.every)}"


def rate(progress: Progress) -> str:
    """Describe how fast it goes: ``12.3 steps/s``, ``4.2 s per epoch``; empty where that is unknown."""
    seconds = progress.pace
    if seconds is None or progress.unit == PERCENT:
        return ""
    return (
        f"{1 / seconds:.1f} {progress.unit}s/s" if seconds < 1 else f"{duration(seconds)} per {progress.unit}"
    )
