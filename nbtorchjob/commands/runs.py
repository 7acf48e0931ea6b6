"""Many jobs from one cell: sent, followed together, and found again by their group's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbtorchjob import api, submission
from nbtorchjob.commands.front import Answer, Asked, Find, Front, Given
from nbtorchjob.errors import ClusterError, JobNotFoundError, LineError
from nbtorchjob.machine import interrupts
from nbtorchjob.spec import grid
from nbtorchjob.spec.options import CellOptions
from nbtorchjob.text import words
from nbtorchjob.text.hints import hint
from nbtorchjob.ui.card.sending import Output

if TYPE_CHECKING:
    from nbtorchjob.job import Job
    from nbtorchjob.runs import Runs

_MOST_SHOWN = 8


def rows(options: CellOptions, look_up: Callable[[str], Any], front: Front) -> list[dict[str, Any]]:
    """Return what each run of a line's group is given; none where it asks for no group.

    Raises ``SpecError``, and ``LineError`` for many runs that nobody said yes to.
    """
    if options.many is None:
        return []
    found = grid.rows(options.many, look_up)
    if len(found) > grid.ASKED_BACK and not options.many.yes and not options.dry_run:
        many = f"{len(found):,} jobs"
        if not front.asks(f"Send {many}?"):
            raise LineError(f"{many} weren't sent: --yes sends them without asking, --sample N draws some")
    return found


def submit(asked: Asked, front: Front) -> Any:
    """Send a call as the runs of a group, and follow them unless they are detached."""
    options, many = asked.options, asked.options.many
    assert many is not None
    with interrupts.told(interrupts.NOTHING):
        if options.dry_run:
            front.show(Answer(_dry_run(asked)))
            return None
        sub = submission.prepare(asked.call, submission.check(asked.spec))
        for note in dict.fromkeys((*sub.cautions, *sub.notes)):
            front.say(f"Note: {note}")
        with front.sending(asked) as output:
            runs = submission.send_runs(
                sub, asked.given, asked.origin, at_once=many.at_once, early=many.early
            )
    return _hold(runs, options, front, output)


def attach(given: Given, front: Front) -> Any:
    """Follow a group's runs; raises ``JobNotFoundError``."""
    options = dict(given.options)
    runs = api.group(given.name, trust=options.pop("trust", False))
    return _hold(runs, CellOptions(**options), front, Output())


def found(names: Sequence[str], find: Find) -> list[Job[Any]]:
    """Return the jobs of these names, where a group's name stands for its runs, the last one first."""
    jobs: list[Job[Any]] = []
    for name in names:
        try:
            jobs.append(find(name))
        except (JobNotFoundError, ClusterError):  # a group of this machine's needs no cluster
            try:
                # Else each one's end would have the next one start.
                jobs += reversed(api.grouped(name))
            except (JobNotFoundError, ClusterError):
                pass
            else:
                continue
            raise
    return jobs


def _hold(runs: Runs[Any], asked: CellOptions, front: Front, output: Output) -> Any:
    with interrupts.told(f"Stopped waiting for {runs.name}: {hint('attach', runs.name)} follows it."):
        if asked.detach:
            if runs.unstarted:
                front.say(f"Note: the next runs start once somebody waits: {hint('attach', runs.name)}")
            if runs.stops_early:
                front.say(f"Note: somebody has to follow {runs.name} for its runs to be stopped early")
            return front.give_runs(runs, asked.out, ended=False)
        from nbtorchjob.ui.runs import view  # late: most of what the command does draws no runs

        view.watch(runs, front.view_runs(runs, asked, output), say=front.say)
        return front.give_runs(runs, asked.out, ended=True)


def _dry_run(asked: Asked) -> str:
    """Describe the runs, and what one of them would send."""
    shown = [_told(row) for row in asked.given[:_MOST_SHOWN]]
    more = len(asked.given) - len(shown)
    lines = [f"# {words.count(len(asked.given), 'run')} of:", submission.dry_run(asked.call, asked.spec)]
    lines += [f"# run {number}: {each}" for number, each in enumerate(shown, 1)]
    return "\n".join([*lines, *([f"# and {words.count(more, 'more run')}"] if more else [])])


def _told(row: Mapping[str, Any]) -> str:
    from nbtorchjob.capture import arguments  # late, as above

    return arguments.said(arguments.shown(row))
