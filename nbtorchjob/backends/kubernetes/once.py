"""Reading a job once, its logs included, without following it."""

from __future__ import annotations

from functools import reduce

from nbtorchjob import events as ev
from nbtorchjob.backends.kubernetes import lookup, podlogs
from nbtorchjob.backends.kubernetes.kept import Pod
from nbtorchjob.backends.kubernetes.lookup import Found
from nbtorchjob.backends.kubernetes.nodelog import Reader
from nbtorchjob.state import JobState, apply


async def snapshot(job: Found) -> JobState:
    """Give all that is known of a job now."""
    pods = await job.pods()
    found = [*lookup.facts(job, pods), *(event for events in await logs(job) for event in events)]
    return lookup.closed(reduce(apply, found, JobState(await job.whole_info())))


async def logs(job: Found) -> list[list[ev.Event]]:
    """Give what the logs of the job's pods say, pod by pod; of pods that are gone, what was kept here."""
    pods = {Pod(node, pod["metadata"]["uid"]): pod["metadata"]["name"] for node, pod in await job.pods()}
    kept = job.kept
    found = []
    for pod in dict.fromkeys((*kept.pods(), *pods)):
        reader = Reader(pod, kept)
        events = reader.events(kept.lines(pod))
        if pod in pods:
            client, namespace = job.session.client, job.place.namespace
            async for lines in podlogs.read_all(client, namespace, pods[pod], job.kind.container):
                events += reader.events(lines)
        found.append(events)
    return found


async def rank_log(job: Found, rank: int) -> list[bytes]:
    """Give a rank's log: its chunks by round and offset, none twice; what is missing is said."""
    events = [event for events in await logs(job) for event in events]
    chunks = [event for event in events if isinstance(event, ev.LogChunk) and event.rank == rank]
    out: list[bytes] = []
    round_, end = -1, 0
    for chunk in sorted(chunks, key=lambda chunk: (chunk.round, chunk.offset)):
        if chunk.round != round_:
            round_, end = chunk.round, 0
        if chunk.offset > end:
            out.append(b"[%d bytes are gone: the container's log was rotated]\n" % (chunk.offset - end))
        out.append(chunk.data[max(0, end - chunk.offset) :])
        end = max(end, chunk.offset + len(chunk.data))
    return out
