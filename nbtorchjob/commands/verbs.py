"""The verbs that act on existing jobs: their answers, for a notebook or a terminal."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtorchjob import api, capture
from nbtorchjob.backends import backend
from nbtorchjob.backends.base import Backend, Images, Leftover
from nbtorchjob.commands import front, running
from nbtorchjob.commands.front import Answer, Answers, Find, ParsedArgs, for_each_name, trying_all
from nbtorchjob.errors import DamagedError, LineError, NBTorchJobError, ResultError
from nbtorchjob.machine import interrupts
from nbtorchjob.spec import options, profiles
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import CellOptions
from nbtorchjob.state import Phase
from nbtorchjob.state.facts import factlines
from nbtorchjob.state.text import facts, lifetime, swaps
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint, run_hint
from nbtorchjob.ui.record import Offers, detail, jobs_html, jobs_text, matches, record

if TYPE_CHECKING:
    from nbtorchjob.job import Job

PROBE = "--probe"
_LOOK_S = 0.5
_END_S = 15.0  # for a cancelled job to end before its status is shown


def parse(
    line: str, say: Callable[[str], object] | None = None, base: JobSpec | None = None
) -> tuple[JobSpec, CellOptions]:
    """Return the spec of a line of options, laid over the profile that it names, or the session's default.

    With a ``base``, the profile is laid over that, or the line itself if it names none. ``say`` reports
    profiles that aren't obeyed, and options without effect.
    """
    if say is not None:
        for note in profiles.notes():
            say(f"Note: {note}")
    profile = options.profile_of(line)
    parsed = options.parse(line, profiles.load(profile, base=base) if profile else base or front.default())
    if say is not None:
        for note in parsed[1].notes:
            say(f"Note: {note}")
    return parsed


def list_(args: ParsedArgs, _find: Find) -> Answers:
    """List the jobs, or those in which each word occurs."""
    with front.warned() as notes:
        jobs = api.summaries(record, everyone="all" in args.options)
    yield from _asides(notes)
    if args.words:
        jobs = [job for job in jobs if matches(job, args.words)]
    # If a backend couldn't be asked, it isn't known whether there are any.
    text = "" if notes and not jobs else jobs_text(jobs)
    text = f"No job matches {' '.join(args.words)!r}." if args.words and not jobs else text
    yield Answer(text, {"jobs": jobs, "notes": notes}, (lambda: jobs_html(jobs)) if text else "")


def status(args: ParsedArgs, find: Find, offers: Offers) -> Answers:
    """Show a job's status."""
    from nbtorchjob.ui.card import view  # late: most of what the command does draws no job

    state = api.snapshot(find(args.name).info.address)
    bundle = view.following(state, offers)
    yield Answer(bundle["text/plain"], record(state, time.time()), bundle["text/html"])


def describe(args: ParsedArgs, find: Find) -> Answers:
    """Show a job's details."""
    from nbtorchjob.ui.card import view  # late, as above

    state = api.snapshot(find(args.name).info.address)
    enforced = {} if state.info.unreadable else api.enforcement(state.info)
    tended = None if state.phase.terminal else api.tended(state.info)
    bundle = view.description(state, enforced, tended)
    yield Answer(bundle["text/plain"], detail(state, time.time(), enforced, tended), bundle["text/html"])


def diff(args: ParsedArgs, find: Find) -> Answers:
    """Compare two jobs."""
    from nbtorchjob.ui import comparison  # late, as above

    jobs = [find(name) for name in args.words]
    states = [api.snapshot(job.info.address) for job in jobs]
    now = time.time()
    outcomes = [comparison.outcome(state, now, job.plain()) for state, job in zip(states, jobs, strict=True)]
    # Jobs of several clusters may have the same name.
    alike = len({state.name for state in states}) == 1
    names = [state.info.address if alike else state.name for state in states]
    aspects = comparison.aspects(states, names)
    yield Answer(
        comparison.text(aspects, names, outcomes),
        comparison.data(aspects, states, outcomes),
        lambda: comparison.html(aspects, names, outcomes, comparison.charts(states, names)),
    )


def lock(args: ParsedArgs, find: Find) -> Answers:
    """Write the packages of a job's ranks as requirements."""
    from nbtorchjob.environment import requirements  # late, as it is slow to import

    state = api.snapshot(find(args.name).info.address)
    packages = state.importable
    if packages is None:
        yet = "" if state.phase.terminal else " yet"
        raise ResultError(f"{state.name}: no node has reported its packages{yet}")
    pins = requirements.lock_requirements(packages)
    data = {"python": packages.python, "platform": packages.platform, "requirements": pins}
    yield Answer(requirements.lock_text(state, packages, facts.origins(state)), data)


def stacks(args: ParsedArgs, find: Find) -> Answers:
    """Show each rank's stack, and the blocking rank."""
    report = find(args.name).stacks()
    good = bool(report.samples) or report.state.phase.terminal  # of a running job, whether a node answered
    yield Answer(str(report), report.to_json(), report._repr_html_(), good=good)


def sample(backend: Backend, name: str) -> None:
    """Make a job's nodes report what their ranks do; raises what ``stacks.look`` raises."""
    from nbtorchjob.backends import stacks  # late: most lines ask no node

    stacks.look(backend, name)


def profile(args: ParsedArgs, find: Find) -> Answers:
    """Profile a rank of a job for some seconds."""
    job, spelled, rank = find(args.name), args.options.get("seconds", "3"), args.options.get("rank", 0)
    memory = args.options.get("memory", False)
    try:
        seconds = float(spelled)
    except ValueError:
        raise LineError(f"{hint('profile')}: --seconds expects a number, got {spelled!r}") from None
    from nbtorchjob.backends.stacks import check_profile  # late: most lines profile nothing

    check_profile(seconds, Path(args.options.get("folder", ".")))
    subject = "memory of " if memory else ""
    yield Answer(f"Profiling {subject}rank {rank} of {job.name} for {seconds:g} s …", aside=True)
    take = job.profile_memory if memory else job.profile
    report = take(seconds, rank, args.options.get("folder", "."))
    yield Answer(str(report), report.to_json(), report._repr_html_())


def artifacts(args: ParsedArgs, find: Find) -> Answers:
    """List a job's artifacts, or copy them into a folder."""
    job, (_, *folder) = find(args.words[0]), args.words
    files = job.artifacts(*folder, attempt=args.options.get("attempt"))
    if not files:
        yet = "" if job.state.phase.terminal else " yet: they are uploaded when a node ends"
        yield Answer(f"{job.name} has no artifacts{yet}", {"artifacts": []}, aside=True)
        return
    rows = [(words.size(file.size), f"node {file.node}", file.path) for file in files]
    yield Answer("\n".join(words.columns(rows)), {"artifacts": [asdict(file) for file in files]})
    total, number = words.size(sum(file.size for file in files)), files[0].attempt
    where = f", copied to {folder[0]}" if folder else f"; {hint('artifacts', job.name, 'FOLDER')} copies them"
    yield Answer(f"{words.count(len(files), 'artifact')} of attempt {number}, {total}{where}", aside=True)


def files(args: ParsedArgs, find: Find) -> Answers:
    """List what a job's ranks have written so far."""
    job, path = find(args.words[0]), "".join(args.words[1:])
    if "sync" in args.options:
        yield from _keep_in_step(job, path, Path(args.options["sync"]))
        return
    listing, now = job.files(path), time.time()
    for node, why in listing.trouble.items():
        yield Answer(f"Node {node} didn't answer: {why}", aside=True)
    rows = [
        (words.size(f.size), f"{words.about(max(0.0, now - f.modified))} ago", f"node {f.node}", f.path)
        for f in listing.files
    ]
    data = {
        "files": [asdict(file) for file in listing.files],
        "trouble": {str(node): why for node, why in listing.trouble.items()},
        "more": listing.more,
    }
    if not rows:
        below = f" below {path}" if path else ""
        yield Answer(f"{job.name}: no files{below} so far", data, aside=True, good=not listing.trouble)
        return
    yield Answer("\n".join(words.columns(rows)), data, good=not listing.trouble)
    total = words.size(sum(file.size for file in listing.files))
    copies = f"; {hint('get', job.name, 'PATH')} copies one"
    more = " listed, and there are more: name a folder" if listing.more else copies
    yield Answer(f"{words.count(len(rows), 'file')}, {total}{more}", aside=True)


def _keep_in_step(job: Job[Any], path: str, folder: Path) -> Answers:
    """Keep a folder in step with what ranks write, until the job ends."""
    sync = job.sync(folder, path)
    yield Answer(f"Keeping {folder} in step with {job.name} until it ends …", aside=True)
    try:
        with interrupts.message(f"Stopped: {folder} has what {job.name} had written until now."):
            trouble = ""
            while not sync.wait(_LOOK_S):
                if sync.trouble not in ("", trouble):
                    trouble = sync.trouble
                    yield Answer(trouble, aside=True)
    finally:
        sync.stop()
    text = f"{folder}: {words.size(sync.copied)} copied" + (f"; {sync.trouble}" if sync.trouble else "")
    data = {"folder": str(folder), "copied": sync.copied, "trouble": sync.trouble}
    yield Answer(text, data, good=not sync.trouble)


def get(args: ParsedArgs, find: Find) -> Answers:
    """Copy files of a running job."""
    name, path, *folder = args.words
    for copied in find(name).get(path, *folder, node=args.options.get("node")):
        notes = [f"{words.size(copied.kept)} were here already"] if copied.kept else []
        notes += ["still being written: this is only its first part"] if copied.growing else []
        text = "; ".join([f"{copied.path}: {words.size(copied.size)}", *notes])
        yield Answer(text, {**asdict(copied), "path": str(copied.path)})


def config(args: ParsedArgs, find: Find) -> Answers:
    """Write a job's options, or those of new jobs, as one line."""
    spec = find(args.name).info.jobspec if args.words else front.default()
    line = options.magic_line(spec)
    yield Answer(run_hint(line), {"line": line, "spec": spec.to_json()})


def cancel(args: ParsedArgs, find: Find) -> Answers:
    """Cancel jobs, and show their final status."""
    gently = "gently" in args.options
    cancelled: list[Job[Any]] = []
    with trying_all(args.words) as trying:
        for name in args.words:
            with trying(name):
                try:
                    jobs = running.matching(name, find)
                except DamagedError as exc:
                    backend(exc.backend).cancel(exc.name, gently=gently)
                    yield Answer(f"{name} cancelled, but {exc}", {"name": name, "error": str(exc)})
                    continue
                for job in jobs:
                    with trying(name if len(jobs) == 1 else job.name):
                        job.cancel(gently=gently)
                        cancelled.append(job)
        for job in cancelled:
            with trying(job.name):
                yield _cancelled(job, _END_S + (job.info.grace_s if gently else 0))


def _cancelled(job: Job[Any], timeout: float) -> Answer:
    """Describe how a cancelled job ends, even if its events are invalid: they are read only now."""
    try:
        job.wait(timeout)
        state, now = job.state, time.time()
        how = f"; {reason}" if (reason := lifetime.after_cancel(state)) else ""
        return Answer(f"{job.name} {facts.status(state, now).lower()}{how}", record(state, now))
    except DamagedError as exc:
        why = str(exc)
    except factlines.UNREADABLE as exc:  # facts contradict each other in an unforeseen way
        why = f"its state can't be determined ({type(exc).__name__}: {exc})"
    return Answer(f"{job.name} cancelled, but {why}", {"name": job.name, "error": why})


def delete(args: ParsedArgs, find: Find) -> Answers:
    """Delete jobs, with their records."""
    with trying_all(args.words) as trying:
        for name in args.words:
            with trying(name):
                try:
                    jobs = running.matching(name, find)
                except DamagedError as exc:
                    backend(exc.backend).delete(exc.name)
                    yield Answer(f"{name} deleted", {"name": name})
                    continue
                for job in jobs:
                    shown = name if len(jobs) == 1 else job.name
                    with trying(shown):
                        job.delete()
                        front.forget(job)
                        yield Answer(f"{shown} deleted", {"name": shown})


def note(args: ParsedArgs, find: Find) -> Answers:
    """Replace the note on a job, or on all runs of a group; without words show it."""
    name, *words = args.words
    clears = "clear" in args.options
    if clears and words:
        raise LineError(f"{hint('note')}: --clear and a note are mutually exclusive")
    if words and not "".join(words).strip():  # from an unset variable
        raise LineError(f"{hint('note')} {name} expects a text; --clear removes the note")
    for job in running.matching(name, find):
        if words or clears:
            job.note(" ".join(words))
        yield _annotated(job)


def tag(args: ParsedArgs, find: Find) -> Answers:
    """Add tags to a job, or to all runs of a group, or remove them; without any show them."""
    name, *tags = args.words
    removes = "remove" in args.options
    if removes and not tags:
        raise LineError(f"{hint('tag')} {name} --remove expects tags")
    for job in running.matching(name, find):
        if tags:
            (job.untag if removes else job.tag)(*tags)
        yield _annotated(job)


def _annotated(job: Job[Any]) -> Answer:
    state = api.snapshot(job.info.address)
    annotation, fact = facts.annotated(state), state.annotated
    data = {"name": job.name, "note": fact.note if fact else "", "tags": [*fact.tags] if fact else []}
    return Answer(f"{job.name}: {annotation or 'no note, no tags'}", data)


@for_each_name
def suspend(name: str, find: Find) -> Answers:
    """Remove jobs' nodes."""
    job = find(name)
    job.suspend()
    how = f": {reason}" if (reason := lifetime.hold_reason(job.state)) else ""
    yield Answer(f"{name} suspended{how}; {hint('resume', name)} to restart it", {"name": name})


@for_each_name
def resume(name: str, find: Find) -> Answers:
    """Start suspended jobs' nodes again."""
    find(name).resume()
    yield Answer(f"{name} resumed", {"name": name})


@for_each_name
def start(name: str, find: Find) -> Answers:
    """Start jobs that wait for their turn, beside the jobs that they wait for."""
    job = find(name)
    waits = job.state.phase in (Phase.SUBMITTED, Phase.PENDING)
    job.start()
    yield Answer(f"{name} {'started' if waits else 'has started already'}", {"name": name})


def export(args: ParsedArgs, find: Find) -> Answers:
    """Write a job's files, and list them."""
    name, folder = args.words
    job = find(name)
    for path in job.export(folder):
        yield Answer(str(path), {"path": str(path)})
    state = job.state
    if left := swaps.left_out(state):
        yield Answer(f"The manifests run {left}; {hint('describe', job.name)} shows it.", aside=True)
    elif job_swaps := swaps.as_swapped(state):
        yield Answer(f"They run the code as changed by {words.count(len(job_swaps), 'swap')}.", aside=True)
    if missing := job.info.jobspec.secret_env:
        yield Answer(f"Before applying, fill in {', '.join(missing)} in the first Secret.", aside=True)


def gc(args: ParsedArgs, _find: Find) -> Answers:
    """List ended jobs and leftovers, or remove them."""
    clears = "yes" in args.options
    with front.warned() as notes:
        leftovers = sorted(api.leftovers(), key=lambda answer: -answer[1].age)
    yield from _asides(notes)
    wide = max((len(left.name) for _, left in leftovers), default=0)
    answers: list[Answer] = []
    for owner, left in leftovers:
        answer = _left(left, wide)
        # An unreadable value must not keep other jobs from being removed.
        try:
            if clears:
                owner.clear(left)
                answer = _left(left, wide, removed=left.state is None or left.state.ended is not None)
        except NBTorchJobError as exc:
            text = f"{left.name} wasn't removed: {exc}; {hint('delete', left.name)} removes it anyway"
            answer = Answer(text, {**answer.data, "error": str(exc)}, good=False)
        answers.append(answer)
        yield answer
    if not leftovers:
        yield Answer("Nothing to remove.", aside=True)
    elif clears:
        if any(answer.data["removed"] for answer in answers):
            yield Answer("Removed permanently.", aside=True)
        if ended := [answer.data["name"] for answer in answers if answer.good and not answer.data["removed"]]:
            text = f"Ended cancelled jobs that were still running: {', '.join(ended)}"
            yield Answer(f"{text}; run {hint('gc', '--yes')} again later to remove them.", aside=True)
    else:
        yield Answer(f"Run {hint('gc', '--yes')} to remove them permanently.", aside=True)


def _left(left: Leftover, wide: int, *, removed: bool = False) -> Answer:
    state, label = left.state, left.description
    label = f"{facts.phase(state).lower()}  {facts.where(state.info)}" if state else label
    data = {"name": left.name, "what": label, "age": left.age, "removed": removed}
    return Answer(f"{words.duration(left.age):>11} ago  {left.name:<{wide}}  {label}", data)


def doctor(args: ParsedArgs, _find: Find) -> Answers:
    """Check everything that a job with these options needs; ``--probe`` also inspects the image."""
    from nbtorchjob.ui import elements  # late: most verbs draw nothing

    notes: list[str] = []
    spec, _ = parse(shlex.join(word for word in args.words if word != PROBE), notes.append)
    yield from (Answer(note, aside=True) for note in notes)
    if PROBE in args.words:
        yield Answer("Inspecting the image with a short job …", aside=True)
        api.probe(spec)
    images = isinstance(backend(spec.backend), Images)
    findings = api.doctor(spec, capture.of_notebook(vars(sys.modules["__main__"])) if images else ())
    data = [{"good": finding.good, "text": finding.text, "remedy": finding.remedy} for finding in findings]
    yield Answer(
        elements.finding_lines(findings), {"findings": data}, good=all(finding.good for finding in findings)
    )


def _asides(notes: Sequence[str]) -> Answers:
    return (Answer(f"Note: {note}", aside=True) for note in notes)
