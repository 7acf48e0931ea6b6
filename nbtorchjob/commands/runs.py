"""Many jobs from one cell: sent, followed together, and found again by their group's name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nbtorchjob import api, submission
from nbtorchjob.commands.front import Answer, Find, Front, ParsedArgs, RunRequest
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
    """Return the parameters of each run; empty if the line requests no group.

    Raises ``SpecError``, and ``LineError`` for many runs without confirmation.
    """
    if options.many is None:
        return []
    parameters = grid.rows(options.many, look_up)
    if len(parameters) > grid.ASKED_BACK and not options.many.yes and not options.dry_run:
        many = f"{len(parameters):,} jobs"
        if not front.asks(f"Submit {many}?"):
            raise LineError(
                f"{many} were not submitted: confirm with --yes, or choose a random subset with --sample N"
            )
    return parameters


def submit(request: RunRequest, front: Front) -> Any:
    """Send a call as the runs of a group, and follow them unless they are detached."""
    options, many = request.options, request.options.many
    assert many is not None
    with interrupts.message(interrupts.NOTHING):
        if options.dry_run:
            front.show(Answer(_dry_run(request)))
            return None
        sub = submission.prepare(request.call, submission.check(request.spec, runs=True))
        for note in dict.fromkeys((*sub.cautions, *sub.notes)):
            front.say(f"Note: {note}")
        with front.sending(request) as output:
            runs = submission.send_runs(
                sub, request.rows, request.origin, at_once=many.at_once, early=many.early
            )
    return _hold(runs, options, front, output)


def attach(args: ParsedArgs, front: Front) -> Any:
    """Follow a group's runs; raises ``JobNotFoundError``."""
    options = dict(args.options)
    runs = api.group(args.name, trust=options.pop("trust", False))
    return _hold(runs, CellOptions(**options), front, Output())


def matching(names: Sequence[str], find: Find) -> list[Job[Any]]:
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


def _hold(runs: Runs[Any], options: CellOptions, front: Front, output: Output) -> Any:
    with interrupts.message(f"Stopped waiting for {runs.name}: {hint('attach', runs.name)} follows it."):
        if options.detach:
            again = hint("attach", runs.name)
            if runs.unstarted:
                front.say(f"Note: the next runs start only while you follow the group: {again}")
            if runs.stops_early:
                front.say(f"Note: runs are stopped early only while you follow the group: {again}")
            return front.give_runs(runs, options.out, ended=False)
        from nbtorchjob.ui.runs import view  # late: most of what the command does draws no runs

        view.watch(runs, front.view_runs(runs, options, output), say=front.say)
        return front.give_runs(runs, options.out, ended=True)


def _dry_run(request: RunRequest) -> str:
    """Describe the runs, and what one of them would send."""
    from nbtorchjob.capture import arguments  # late, as above

    shown = [arguments.said(arguments.shown(row)) for row in request.rows[:_MOST_SHOWN]]
    more = len(request.rows) - len(shown)
    lines = [
        f"# {words.count(len(request.rows), 'run')} of:",
        submission.dry_run(request.call, request.spec, runs=True),
    ]
    lines += [f"# run {number}: {row}" for number, row in enumerate(shown, 1)]
    return "\n".join([*lines, *([f"# and {words.count(more, 'more run')}"] if more else [])])
