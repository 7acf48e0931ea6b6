"""The requests for one job, the speed of its logs, and the cost of many jobs, on the tests' emulator.

The emulator is Python too and runs on the same machine: times are held against plain HTTP to it, not
against a real API server.
"""

import sys
from pathlib import Path
from statistics import median, quantiles

from tests.backends.kubernetes.cluster import KINDS
from tests.backends.kubernetes.cluster.resources import CRDS
from tests.benchmarks.kubernetes_cluster import Apart, forget, requests, spec, submit
from tests.benchmarks.kubernetes_crowd import listed, watches
from tests.benchmarks.kubernetes_delay import delays
from tests.benchmarks.kubernetes_flood import CUTS, LINES, MB, PODS, flood
from tests.benchmarks.measure import Row, in_turn, medians, own_state, show, spread

NODES = 2
ROUNDS = 3
GOAL = 8  # times plain HTTP; ``kubernetes_flood`` has the cost of a line
JOBS_FOLLOWED, JOBS_LISTED = 100, 1000


def ask() -> None:
    """Count the requests for one job of each kind, in a session that knows its cluster."""
    rows = []
    for kind in KINDS:
        before = requests()
        job = submit(f"{NODES}", spec(kind, NODES))
        submitted = requests()
        assert job.result(120) == NODES
        ended = requests()
        job.delete()
        rows += [
            Row(f"{kind}: to submit", submitted - before, 1, 4, ""),
            Row(
                f"{kind}: to follow {NODES} nodes to the end, value included", ended - submitted, 1, None, ""
            ),
        ]
    show("Requests: one job", "1", rows)


def delay(cluster: Apart) -> None:
    samples = delays(cluster)
    p99 = {name: quantiles(values, n=100)[-1] for name, values in samples.items()}
    half, plain = median(samples["event"]), median(samples["plain"])
    rows = [
        Row("plain HTTP, median", plain, plain),
        Row("event, median", half, plain),
        Row("plain HTTP, p99", p99["plain"], p99["plain"]),
        Row("event, p99", p99["event"], p99["plain"]),
    ]
    show(f"Delay: from a rank's print to the kernel, {len(samples['event'])} lines", "plain HTTP", rows)


def throughput(cluster: Apart, folder: Path) -> None:
    with flood(cluster, folder) as load:
        subjects = {
            "plain HTTP, unread": load.plainly,
            "followed": lambda: load.followed(0),
            f"followed, {CUTS} cuts a pod": lambda: load.followed(CUTS),
        }
        samples = in_turn(subjects, ROUNDS)
    times = medians(samples)
    base = times["plain HTTP, unread"]
    rows = [Row(name, value, base, GOAL if name == "followed" else None) for name, value in times.items()]
    size, speed = sum(map(len, load.texts)) / MB, PODS * LINES / times["followed"]
    cuts = " ".join(str(count) for count in load.cuts if count)
    notes = [
        f"{size:.0f} MB printed, {speed:,.0f} lines a second; none lost, none doubled",
        f"connections that were cut, round by round: {cuts}; after each, whole seconds are sent again",
    ]
    show(f"Logs: {PODS} pods x {LINES:,} lines", "plain HTTP", rows, spread(samples), *notes)


def crowd(cluster: Apart) -> None:
    cluster.hold(".*")
    base, many = watches(cluster, 1), watches(cluster, JOBS_FOLLOWED)
    show(
        "Watches open in one namespace",
        "one job's",
        [Row("1 job", base, base, None, ""), Row(f"{JOBS_FOLLOWED} jobs", many, base, 1, "")],
    )
    listing = listed(cluster, JOBS_LISTED)
    show(
        f"Memory: a list of {JOBS_LISTED:,} jobs with a pod each ({listing.seconds:.2f} s)",
        "what was sent",
        [
            Row("what the server sent", listing.sent, listing.sent, None, "MB"),
            Row("the most while it is made", listing.peak, listing.sent, None, "MB"),
            Row("what the kernel keeps", listing.kept, listing.sent, None, "MB"),
        ],
    )


def main() -> None:
    if not CRDS.is_dir():
        sys.exit("Kubernetes: skipped, shared/crds doesn't lie beside the checkout")
    with own_state() as folder, Apart() as cluster:
        # Makes the cluster known to the session, and the image to the emulator.
        first = submit("None", spec("trainjob"))
        first.result(120)
        first.delete()
        ask()
        delay(cluster)
        throughput(cluster, folder)
        forget(folder)
        crowd(cluster)


if __name__ == "__main__":
    main()
