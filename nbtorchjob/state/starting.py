"""What keeps a job from running, since when, and until when it may: pure, the same for everybody.

Only what a cluster has a word for counts: a pod that no host has room for, an image that can't be pulled, a
quota. A job that is queued, and an image that is on its way, may take as long as they like.
"""

from __future__ import annotations

from nbtorchjob.state import events as ev
from nbtorchjob.state.known import Known

_GATED = "SchedulingGated"  # it waits to be admitted, which is no trouble


def held(known: Known) -> ev.Waiting | None:
    """Return what has held the newest attempt back for longest; None where nothing does that has a name."""
    asked = (known.cancelled, known.removed, known.verdict, known.ended)
    if known.working or known.suspended or any(answer is not None for answer in asked):
        return None
    waits = [w for w in known.waiting if w.reason not in ("", _GATED) and w.stage < ev.Stage.RESTARTING]
    return min(waits, key=lambda w: (not w.since, w.since), default=None)


def since(known: Known, wait: ev.Waiting) -> float | None:
    """Return when the newest attempt came to wait for that; None where the cluster doesn't say."""
    if not wait.since:
        return None
    retry, pause = known.info.retry, known.pause
    ended = [v for v in known.verdicts if v.attempt < known.tries]
    begun = [v.time + (retry.delay(v.attempt) if retry else 0.0) for v in ended]
    # What is said of the whole job by the same word may have been so once before, and not while it ran.
    lives = [life for node in known.nodes.values() for life in node.lives.values()]
    ran = [life.end for life in lives if life.starts and life.over and wait.node is None]
    return max([wait.since, *begun, *ran, *([pause.time] if pause else [])])
