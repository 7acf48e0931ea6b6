"""The emulator compared with histories that were recorded on a real cluster with the real operators."""

import re
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.player import Player

# The histories to play, the longest first.
PLAYED = {
    "vcjob": """
        vcjob-abort-resume vcjob-delete-no-policy vcjob-delete-restartjob vcjob-delete-restarttask
        vcjob-delete-running-default vcjob-evict-no-policy vcjob-evict-restartjob vcjob-evict-restarttask
        vcjob-exit1-abortjob vcjob-exit1-no-policy vcjob-exit1-no-policy-minavailable1
        vcjob-exit1-restartjob-maxretry1 vcjob-exit1-restartjob-maxretry2 vcjob-exit1-restartjob-maxretry3
        vcjob-exit1-terminatejob vcjob-exitcode-policy vcjob-imagepull vcjob-oom vcjob-success
        vcjob-taint-restartjob vcjob-taskcompleted-completejob vcjob-ttl vcjob-unschedulable-gang
        vcjob-unschedulable-gpu
    """,
    "trainjob": """
        trainjob-activedeadline trainjob-created-suspended trainjob-delete-default
        trainjob-delete-never-backoff0 trainjob-delete-running-background trainjob-delete-running-default
        trainjob-delete-running-foreground trainjob-evict-default trainjob-evict-never-backoff0
        trainjob-exit1-backoff0-never trainjob-exit1-backoff1-never trainjob-exit1-jobset-maxrestarts1
        trainjob-exit1-onfailure-backoff1 trainjob-imagepull trainjob-missing-secret-env trainjob-name-50
        trainjob-oom trainjob-patch-unknown-job trainjob-podfailurepolicy trainjob-runtimepatches
        trainjob-success trainjob-success-no-trainer-env trainjob-suspend-resume trainjob-unschedulable-gpu
    """,
    "pytorchjob": """
        ptj-bad-command ptj-cleanpodpolicy-all ptj-cleanpodpolicy-all-success ptj-cleanpodpolicy-none
        ptj-cleanpodpolicy-none-backoff ptj-cleanpodpolicy-running ptj-created-suspended
        ptj-delete-elastic-exit0 ptj-delete-exitcode ptj-delete-never ptj-delete-onfailure
        ptj-delete-running-background ptj-delete-running-default ptj-delete-running-foreground
        ptj-elastic-staggered ptj-elastic-success ptj-evict-elastic-exit0 ptj-evict-exitcode ptj-evict-never
        ptj-evict-onfailure ptj-evicted-emptydir ptj-exitcode-exit1-backoff1 ptj-exitcode-exit3-backoff1
        ptj-image-invalid-name ptj-imagepull ptj-master-done-worker-running ptj-master-fails-worker-ok
        ptj-master-worker-success ptj-missing-secret-env ptj-missing-secret-volume ptj-name-60
        ptj-never-exit1-backoff1 ptj-never-exit137-backoff1 ptj-onfailure-exit1-backoff0
        ptj-onfailure-exit1-backoff1 ptj-onfailure-exit1-backoff2 ptj-onfailure-exit137-backoff1
        ptj-onfailure-recovers-after-restart ptj-oom-never ptj-pod-activedeadline ptj-quota
        ptj-suspend-resume ptj-suspend-resume-clean ptj-taint-never ptj-ttl ptj-unschedulable-cpu
        ptj-unschedulable-gpu ptj-worker-only-success
    """,
    "job": """
        job-activedeadline job-activedeadline-sigterm-trapped job-backofflimitperindex job-bad-command
        job-created-suspended job-delete-backoff0 job-delete-podfailurepolicy-ignore
        job-delete-running-background job-delete-running-default job-delete-running-foreground
        job-delete-running-orphan job-evict-backoff0 job-evict-exit143 job-evict-podfailurepolicy-ignore
        job-evicted-emptydir job-exit1-backoff0 job-exit1-backoff1 job-exit1-backoff2
        job-exit1-onfailure-backoff1 job-failindex job-image-never job-imagepull job-init-fails job-oom
        job-pod-activedeadline job-podfailurepolicy-count job-podfailurepolicy-failjob job-quota job-success
        job-successpolicy job-suspend-resume job-taint-backoff0 job-termination-message
        job-termination-message-big job-ttl job-unschedulable-selector
    """,
}
SCENARIOS = [f"{kind}/{name}" for kind, names in PLAYED.items() for name in names.split()]

OUTSIDE = {
    "endless restarts, as many as there is time for": r"""
        ptj-exitcode-exit1(37|43)-backoff1|ptj-oom-(exitcode|onfailure)|ptj-outofcpu|ptj-init-fails
        |ptj-evicted-ephemeral|ptj-onfailure-exit1-backoffunset|trainjob-exit1-default
        |ptj-bad-command-onfailure""",
    "a node that goes or is silent: there is one node here": r".*-node(gone|lost)-.*",
    "preemption: nothing here has a priority": r".*-preempt-.*",
    "the operator's cache lags behind": "ptj-exitcode-exit143-backoff0|trainjob-runtime-just-created",
    "taints: eviction is played by name for one of each kind": r".*-taint-.*",
    "disruption budgets, sidecars, node admission": r"job-evict-pdb-refused|job-native-sidecar|pod-.*",
    "memory and files of a process are not limited": "job-oom-child|ptj-shm-full|ptj-env-too-big",
    "the deadline is noticed with the next change, 40 s later": "ptj-activedeadline-quiet",
    "no TTL without completionTime: nothing happens for a minute": "ptj-exitcode-exit1-ttl",
    "grace of the job itself": "job-delete-running-foreground-grace30",
    "a directory is found by no search for programs": "job-command-is-directory",
    "an image is demanded by the server's own validation": "trainjob-patch-unknown-container",
    "refused at creation": "job-name-63|trainjob-runtime-missing|vcjob-(name-62|queue-missing)",
}


BESIDE = 16  # histories that play at once: most of the time they wait


@pytest.fixture(scope="module")
def played(request, crds, recordings):
    """Yield a function that returns a history's differences; it also starts those of the next tests."""
    items = [item for item in request.session.items if "scenario" in getattr(item, "fixturenames", ())]
    names = list(dict.fromkeys(item.callspec.params["scenario"] for item in items))
    playing: dict[str, Future[list[str]]] = {}
    with (
        Emulator(cpus=2, backoff_s=2, restart_s=2, settle_s=0.2) as cluster,
        ThreadPoolExecutor(BESIDE) as pool,
    ):

        def play(name):
            return differences(Player(cluster, recordings / name))

        def found(name):
            for beside in names[names.index(name) :][:BESIDE]:
                if beside not in playing:
                    playing[beside] = pool.submit(play, beside)
            return playing[name].result()

        yield found


def differences(player):
    try:
        return player.differences(player.play())
    except AssertionError as never_came:
        return [str(never_came)]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_history_is_as_it_was_recorded(scenario, played):
    assert played(scenario) == []


def test_every_recorded_history_is_played_or_left_out_by_name(recordings):
    names = {folder.name for kind in (*PLAYED, "pod") for folder in (recordings / kind).iterdir()}
    patterns = [re.compile(pattern, re.VERBOSE) for pattern in OUTSIDE.values()]
    left_out = {name for name in names if any(pattern.fullmatch(name) for pattern in patterns)}

    assert names - left_out == {scenario.partition("/")[2] for scenario in SCENARIOS} - left_out
