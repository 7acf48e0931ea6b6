"""The verbs that act on existing jobs: their answers, for a notebook or a terminal."""

from __future__ import annotations

import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtorchjob import api, capture
from nbtorchjob.backends import backend
from nbtorchjob.backends.base import Backend, Leftover
from nbtorchjob.commands import front, runs
from nbtorchjob.commands.front import Answer, Answers, Find, Given
from nbtorchjob.environment import lock as requirements
from nbtorchjob.errors import DamagedError, LineError, NBTorchJobError, ResultError
from nbtorchjob.spec import options, profiles
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.spec.options import CellOptions
from nbtorchjob.state import events as ev
from nbtorchjob.state.text import facts, lifetime
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint, run_hint
from nbtorchjob.ui import jobs_table, parts
from nbtorchjob.ui.offers import Offers
from nbtorchjob.ui.record import detail, record

if TYPE_CHECKING:
    from nbtorchjob.job import Job

PROBE = "--probe"
_END_S = 15.0  # for a cancelled job to end before its status is shown


def parse(line: str, say: Callable[[str], object] | None = None) -> tuple[JobSpec, CellOptions]:
    """Return the spec of a line of options, laid over the profile that it names, or the session's default.

    ``say`` reports which files of profiles aren't obeyed, and which options have no effect.
    """
    if say is not None:
        for note in profiles.notes():
            say(f"Note: {note}")
    # Twice: the profile that the other options are laid over is itself an option.
    profile = options.parse(line, JobSpec())[1].profile
    found = options.parse(line, profiles.load(profile) if profile else front.default())
    if say is not None:
        for note in found[1].notes:
            say(f"Note: {note}")
    return found


def list_(given: Given, _find: Find) -> Answers:
    """List the jobs."""
    with warned() as notes:
        jobs = api.summaries(record, everyone="all" in given.options)
    yield from _asides(notes)
    # If a backend couldn't be asked, it isn't known whether there are any.
    text = "" if notes and not jobs else jobs_table.text(jobs)
    yield Answer(text, {"jobs": jobs, "notes": notes}, (lambda: jobs_table.html(jobs)) if text else "")


def status(given: Given, find: Find, offers: Offers) -> Answers:
    """Draw a job."""
    from nbtorchjob.ui.card import view  # late: most of what the command does draws no job

    state = api.snapshot(find(given.name).info.address)
    bundle = view.following(state, offers)
    yield Answer(bundle["text/plain"], record(state, time.time()), bundle["text/html"])


def describe(given: Given, find: Find) -> Answers:
    """Show all that is known of a job."""
    from nbtorchjob.ui.card import view  # late, as above

    state = api.snapshot(find(given.name).info.address)
    enforced = {} if state.info.unreadable else api.enforcement(state.info)
    tended = None if state.phase.terminal else api.tended(state.info)
    bundle = view.description(state, enforced, tended)
    yield Answer(bundle["text/plain"], detail(state, time.time(), enforced, tended), bundle["text/html"])


def diff(given: Given, find: Find) -> Answers:
    """Tell two jobs apart."""
    from nbtorchjob.ui import comparison  # late, as above

    jobs = [find(name) for name in given.words]
    states = [api.snapshot(job.info.address) for job in jobs]
    now = time.time()
    outcomes = [comparison.outcome(state, now, job.plain()) for state, job in zip(states, jobs, strict=True)]
    # Jobs of several clusters may have the same name.
    alike = len({state.name for state in states}) == 1
    names = [state.info.address if alike else state.name for state in states]
    found = comparison.aspects(states, names)
    yield Answer(
        comparison.text(found, names, outcomes),
        comparison.data(found, states, outcomes),
        lambda: comparison.html(found, names, outcomes),
    )


def lock(given: Given, find: Find) -> Answers:
    """Write what a job could import as requirements."""
    state = api.snapshot(find(given.name).info.address)
    told = state.importable
    if told is None:
        why = "it isn't known" if state.phase.terminal else "it isn't known yet"
        raise ResultError(f"{state.name}: {why} what its ranks can import, which a node tells as it starts")
    found = {
        "python": told.python,
        "platform": told.platform,
        "requirements": requirements.requirements(told),
    }
    yield Answer(requirements.text(state, told, facts.origins(state)), found)


def stacks(given: Given, find: Find) -> Answers:
    """Show what each rank of a job does, and whom the others wait for."""
    found = find(given.name).stacks()
    yield Answer(str(found), found.to_json(), found._repr_html_(), good=bool(found.samples))


def profile(given: Given, find: Find) -> Answers:
    """Profile a rank of a job for some seconds, and show where its time went."""
    job, asked, rank = find(given.name), given.options.get("seconds", "3"), given.options.get("rank", 0)
    memory = given.options.get("memory", False)
    try:
        seconds = float(asked)
    except ValueError:
        raise LineError(f"{hint('profile')}: --seconds needs a number, got {asked!r}") from None
    from nbtorchjob.backends import profiles  # late: most lines profile nothing

    profiles.check(seconds, Path(given.options.get("folder", ".")))
    what = "memory of " if memory else ""
    yield Answer(f"Profiling {what}rank {rank} of {job.name} for {seconds:g} s …", aside=True)
    take = job.profile_memory if memory else job.profile
    found = take(seconds, rank, given.options.get("folder", "."))
    yield Answer(str(found), found.to_json(), found._repr_html_())


def artifacts(given: Given, find: Find) -> Answers:
    """List what ranks left below ``artifacts_dir()``, or copy it into a folder."""
    job, (_, *folder) = find(given.words[0]), given.words
    found = job.artifacts(*folder, attempt=given.options.get("attempt"))
    if not found:
        said = "left no artifacts"
        if not job.state.phase.terminal:
            said = "has left no artifacts yet: they come once a node has ended"
        yield Answer(f"{job.name} {said}", {"artifacts": []}, aside=True)
        return
    rows = [(words.size(each.size), f"node {each.node}", each.path) for each in found]
    yield Answer("\n".join(words.columns(rows)), {"artifacts": [asdict(each) for each in found]})
    total, number = words.size(sum(each.size for each in found)), found[0].attempt
    where = f", copied to {folder[0]}" if folder else f"; {hint('artifacts', job.name, 'FOLDER')} copies them"
    yield Answer(f"{words.count(len(found), 'artifact')} of attempt {number}, {total}{where}", aside=True)


def config(given: Given, find: Find) -> Answers:
    """Write a job's options, or those of new jobs, as one line."""
    spec = find(given.name).info.asked if given.words else front.default()
    line = options.magic_line(spec)
    yield Answer(run_hint(line), {"line": line, "spec": spec.to_json()})


def cancel(given: Given, find: Find) -> Answers:
    """End jobs, and show their status then."""
    gently = "gently" in given.options
    cancelled: list[Job[Any]] = []
    for name in given.words:
        try:
            jobs = runs.found([name], find)
        except DamagedError as exc:
            backend(exc.backend).cancel(exc.name, gently=gently)
            yield Answer(f"{name} cancelled, but {exc}", {"name": name, "error": str(exc)})
            continue
        for job in jobs:
            job.cancel(gently=gently)
        cancelled += jobs
    for job in cancelled:
        yield _cancelled(job, _END_S + (job.info.grace_s if gently else 0))


def _cancelled(job: Job[Any], timeout: float) -> Answer:
    """Describe how a cancelled job ends, whatever it told of itself: that is read only now."""
    try:
        job.wait(timeout)
        state, now = job.state, time.time()
        how = f"; {said}" if (said := lifetime.held(state)) else ""
        return Answer(f"{job.name} {facts.status(state, now)}{how}", record(state, now))
    except DamagedError as exc:
        why = str(exc)
    except ev.UNREADABLE as exc:  # of facts that contradict each other in a way that nobody thought of
        why = f"its state can't be concluded ({type(exc).__name__}: {exc})"
    return Answer(f"{job.name} cancelled, but {why}", {"name": job.name, "error": why})


def delete(given: Given, find: Find) -> Answers:
    """End jobs, and remove what is kept of them."""
    for name in given.words:
        try:
            jobs = runs.found([name], find)
        except DamagedError as exc:
            backend(exc.backend).delete(exc.name)
            yield Answer(f"{name} deleted", {"name": name})
            continue
        for job in jobs:
            job.delete()
            front.forget(job)
            shown = name if len(jobs) == 1 else job.name
            yield Answer(f"{shown} deleted", {"name": shown})


def suspend(given: Given, find: Find) -> Answers:
    """Remove jobs' nodes."""
    for name in given.words:
        job = find(name)
        job.suspend()
        how = f": {said}" if (said := lifetime.held(job.state)) else ""
        yield Answer(f"{name} suspended{how}; {hint('resume', name)} to restart it", {"name": name})


def resume(given: Given, find: Find) -> Answers:
    """Start suspended jobs' nodes again."""
    for name in given.words:
        find(name).resume()
        yield Answer(f"{name} resumed", {"name": name})


def export(given: Given, find: Find) -> Answers:
    """Write a job's files, and list them."""
    name, folder = given.words
    job = find(name)
    for path in job.export(folder):
        yield Answer(str(path), {"path": str(path)})
    if missing := job.info.asked.secret_env:
        yield Answer(f"Fill in {', '.join(missing)} in the first Secret before you apply them.", aside=True)


def gc(given: Given, _find: Find) -> Answers:
    """List what is left over, or remove it."""
    clears = "yes" in given.options
    with warned() as notes:
        found = sorted(api.leftovers(), key=lambda each: -each[1].age)
    yield from _asides(notes)
    wide = max((len(left.name) for _, left in found), default=0)
    told: list[Answer] = []
    for owner, left in found:
        told.append(_cleared(owner, left, wide) if clears else _left(left, wide))
        yield told[-1]
    if not found:
        yield Answer("Nothing to remove.", aside=True)
    elif clears:
        if any(each.data["removed"] for each in told):
            yield Answer("Removed permanently.", aside=True)
        if ended := [each.data["name"] for each in told if each.good and not each.data["removed"]]:
            text = f"Ended, as they still ran though they had been cancelled: {', '.join(ended)}"
            yield Answer(f"{text}; {hint('gc', '--yes')} removes them later.", aside=True)
    else:
        yield Answer(f"Run {hint('gc', '--yes')} to remove them permanently.", aside=True)


def _left(left: Leftover, wide: int, *, removed: bool = False) -> Answer:
    what = f"{facts.phase(left.state)}  {facts.where(left.state.info)}" if left.state else left.what
    data = {"name": left.name, "what": what, "age": left.age, "removed": removed}
    return Answer(f"{words.duration(left.age):>11} ago  {left.name:<{wide}}  {what}", data)


def _cleared(backend: Backend, left: Leftover, wide: int) -> Answer:
    # One whose value can't be read mustn't keep others from being removed.
    try:
        backend.clear(left)
    except NBTorchJobError as exc:
        text = f"{left.name} wasn't removed: {exc}; {hint('delete', left.name)} removes it anyway"
        return Answer(text, {**_left(left, wide).data, "error": str(exc)}, good=False)
    return _left(left, wide, removed=left.state is None or left.state.ended is not None)


def doctor(given: Given, _find: Find) -> Answers:
    """Check everything that a job with these options would need; the image may be asked for it."""
    notes: list[str] = []
    spec, _ = parse(shlex.join(word for word in given.words if word != PROBE), notes.append)
    yield from (Answer(note, aside=True) for note in notes)
    if PROBE in given.words:
        yield Answer("Asking the image what it has, by a job of one small node …", aside=True)
        api.probe(spec)
    images = backend(spec.backend).has_images
    found = api.doctor(spec, capture.of_notebook(vars(sys.modules["__main__"])) if images else ())
    told = [{"good": each.good, "text": each.text, "remedy": each.remedy} for each in found]
    yield Answer(parts.finding_lines(found), {"findings": told}, good=all(each.good for each in found))


@contextmanager
def warned() -> Iterator[list[str]]:
    """Collect warnings raised within: an answer has no use for the line of our code that warned."""
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield told
    told += dict.fromkeys(str(warning.message) for warning in caught)


def _asides(notes: Sequence[str]) -> Answers:
    return (Answer(f"Note: {note}", aside=True) for note in notes)
