"""A person's conclusion from each recorded history: the last column of the recordings' README."""

from nbtorchjob.state.failure import Cause

SUCCEEDED = [
    "ptj-cleanpodpolicy-all-success", "ptj-created-suspended", "ptj-delete-exitcode",
    "ptj-delete-onfailure", "ptj-elastic-staggered", "ptj-elastic-success", "ptj-evict-exitcode",
    "ptj-evict-onfailure", "ptj-exitcode-exit137-backoff1", "ptj-exitcode-exit143-backoff1",
    "ptj-master-done-worker-running", "ptj-master-worker-success", "ptj-nodegone-exitcode",
    "ptj-nodelost-onfailure", "ptj-onfailure-recovers-after-restart", "ptj-preempt-exitcode",
    "ptj-preempt-onfailure", "ptj-suspend-resume-clean", "ptj-taint-onfailure", "ptj-ttl",
    "ptj-worker-only-success", "trainjob-created-suspended", "trainjob-delete-default",
    "trainjob-evict-default", "trainjob-preempt-default", "trainjob-runtimepatches", "trainjob-success",
    "trainjob-success-no-trainer-env", "trainjob-suspend-resume", "trainjob-taint-default",
    "vcjob-abort-resume", "vcjob-delete-no-policy", "vcjob-delete-restartjob", "vcjob-delete-restarttask",
    "vcjob-evict-no-policy", "vcjob-evict-restartjob", "vcjob-evict-restarttask",
    "vcjob-exit1-no-policy-minavailable1", "vcjob-nodegone-restartjob", "vcjob-preempt-restartjob",
    "vcjob-success", "vcjob-taint-restartjob", "vcjob-taskcompleted-completejob", "vcjob-ttl",
    "job-created-suspended", "job-evict-exit143", "job-evict-pdb-refused",
    "job-evict-podfailurepolicy-ignore", "job-native-sidecar", "job-nodegone-podfailurepolicy-ignore",
    "job-nodelost-podfailurepolicy-ignore", "job-preempt-podfailurepolicy-ignore", "job-quota",
    "job-success", "job-successpolicy", "job-suspend-resume", "job-taint-podfailurepolicy-ignore",
    "job-ttl",
]  # fmt: skip

# For each failure, its cause and a part of the line that states it.
EVICTED = (Cause.INFRA, "evicted, as when a host is drained")
DELETED = (Cause.INFRA, "its pod was deleted")
TAINTED = (Cause.INFRA, "lost or tainted")
PREEMPTED = (Cause.INFRA, "higher priority")
DEADLINE = (Cause.DEADLINE, "its deadline")
POD_DEADLINE = (Cause.DEADLINE, "its pod's deadline")
CODE = (Cause.USER, "the code failed")
CODE_3 = (Cause.USER, "code 3")
MEMORY = (Cause.USER, "(OOMKilled): its limit was")
DISK = (Cause.USER, "its volume s than its limit of 3Mi")
KILLED = (Cause.UNKNOWN, "SIGKILL")
NO_START = (Cause.CONFIG, "can't start")
FAILED = {
    "ptj-activedeadline-quiet": DEADLINE,
    "ptj-bad-command": NO_START,
    "ptj-cleanpodpolicy-all": CODE,
    "ptj-cleanpodpolicy-none": CODE,
    "ptj-cleanpodpolicy-none-backoff": CODE,
    "ptj-cleanpodpolicy-running": CODE,
    "ptj-delete-elastic-exit0": DELETED,
    "ptj-delete-never": DELETED,
    "ptj-env-too-big": CODE,
    "ptj-evict-elastic-exit0": EVICTED,
    "ptj-evict-never": EVICTED,
    "ptj-evicted-emptydir": DISK,
    "ptj-exitcode-exit1-backoff1": CODE,
    "ptj-exitcode-exit1-ttl": CODE,
    "ptj-exitcode-exit143-backoff0": (Cause.USER, "SIGTERM"),
    "ptj-exitcode-exit3-backoff1": CODE_3,
    "ptj-master-fails-worker-ok": CODE,
    "ptj-never-exit1-backoff1": CODE,
    "ptj-never-exit137-backoff1": KILLED,
    "ptj-nodegone-never": (Cause.INFRA, "no longer exists"),
    "ptj-nodelost-never": TAINTED,
    "ptj-onfailure-exit1-backoff0": CODE,
    "ptj-onfailure-exit1-backoff1": CODE,
    "ptj-onfailure-exit1-backoff2": CODE,
    "ptj-onfailure-exit137-backoff1": KILLED,
    "ptj-oom-never": MEMORY,
    "ptj-oom-onfailure": MEMORY,
    "ptj-pod-activedeadline": POD_DEADLINE,
    "ptj-preempt-never": PREEMPTED,
    "ptj-shm-full": CODE,
    "ptj-suspend-resume": DELETED,
    "ptj-taint-never": TAINTED,
    "trainjob-activedeadline": DEADLINE,
    "trainjob-delete-never-backoff0": DELETED,
    "trainjob-evict-never-backoff0": EVICTED,
    "trainjob-exit1-backoff0-never": CODE,
    "trainjob-exit1-backoff1-never": CODE,
    "trainjob-exit1-jobset-maxrestarts1": CODE,
    "trainjob-exit1-onfailure-backoff1": CODE,
    "trainjob-nodelost-never-backoff0": TAINTED,
    "trainjob-oom": MEMORY,
    "trainjob-podfailurepolicy": CODE_3,
    "vcjob-exit1-abortjob": CODE,
    "vcjob-exit1-no-policy": CODE,
    "vcjob-exit1-restartjob-maxretry1": CODE,
    "vcjob-exit1-restartjob-maxretry2": CODE,
    "vcjob-exit1-restartjob-maxretry3": CODE,
    "vcjob-exit1-terminatejob": CODE,
    "vcjob-exitcode-policy": CODE_3,
    "vcjob-oom": MEMORY,
    "job-activedeadline": DEADLINE,
    "job-activedeadline-sigterm-trapped": DEADLINE,
    "job-backofflimitperindex": CODE,
    "job-bad-command": NO_START,
    "job-command-is-directory": NO_START,
    "job-delete-backoff0": DELETED,
    "job-delete-podfailurepolicy-ignore": DELETED,
    "job-evict-backoff0": EVICTED,
    "job-evicted-emptydir": DISK,
    "job-exit1-backoff0": CODE,
    "job-exit1-backoff1": CODE,
    "job-exit1-backoff2": CODE,
    "job-exit1-onfailure-backoff1": CODE,
    "job-failindex": CODE_3,
    "job-init-fails": (Cause.CONFIG, "init container init exited with code 5"),
    "job-oom": MEMORY,
    "job-oom-child": MEMORY,
    "job-pod-activedeadline": POD_DEADLINE,
    "job-podfailurepolicy-count": (Cause.USER, "code 9"),
    "job-podfailurepolicy-failjob": CODE_3,
    "job-preempt-backoff0": PREEMPTED,
    "job-taint-backoff0": TAINTED,
    "job-termination-message": CODE_3,
    "job-termination-message-big": CODE_3,
}
# The record ends while a pod still runs that may change the conclusion, or explain it further.
STILL_RUNNING = {"ptj-delete-elastic-exit0", "ptj-evict-elastic-exit0", "ptj-never-exit137-backoff1"}

CANCELLED = [
    "ptj-delete-running-background", "ptj-delete-running-default", "ptj-delete-running-foreground",
    "trainjob-delete-running-background", "trainjob-delete-running-default",
    "trainjob-delete-running-foreground", "vcjob-delete-running-default", "job-delete-running-background",
    "job-delete-running-foreground", "job-delete-running-foreground-grace30",
]  # fmt: skip

# Jobs that waited until somebody deleted them: the cause, and a part of the line that states it.
PULL = (Cause.CONFIG, "none:1 can't be pulled, because there is no such registry")
GPU = (Cause.WAIT, "nvidia.com/gpu")
WAITING = {
    "ptj-bad-command-onfailure": (Cause.CONFIG, "StartError"),
    "ptj-image-invalid-name": (Cause.CONFIG, "an invalid name"),
    "ptj-imagepull": PULL,
    "ptj-missing-secret-env": (Cause.CONFIG, 'secret "absent" not found'),
    "ptj-missing-secret-volume": (Cause.CONFIG, 'secret "absent" not found'),
    "ptj-name-60": (Cause.CONFIG, "Service can't be created"),
    "ptj-unschedulable-cpu": (Cause.WAIT, "no host has enough cpu free"),
    "ptj-unschedulable-gpu": GPU,
    "trainjob-imagepull": PULL,
    "trainjob-missing-secret-env": (Cause.CONFIG, 'secret "absent" not found'),
    "trainjob-name-50": (Cause.CONFIG, "JobSet"),
    "trainjob-patch-unknown-container": (Cause.CONFIG, "containers[0].image"),
    "trainjob-patch-unknown-job": (Cause.CONFIG, "JobSet"),
    "trainjob-unschedulable-gpu": GPU,
    "vcjob-imagepull": PULL,
    "vcjob-unschedulable-gang": (Cause.WAIT, "gang"),
    "vcjob-unschedulable-gpu": (Cause.WAIT, "gang"),
    "job-image-never": (Cause.CONFIG, "localhost/absent:1 isn't on its host"),
    "job-imagepull": PULL,
    "job-unschedulable-selector": (Cause.WAIT, "no host matches the node selector"),
}

# Jobs that never end: the cause that they would have, and a part of the line that states it.
GOES_ON = {
    "ptj-evicted-ephemeral": (Cause.USER, "its disk than its limit of 3Mi"),
    "ptj-init-fails": (Cause.CONFIG, "init container init exited with code 5"),
    "ptj-onfailure-exit1-backoffunset": CODE,
    "ptj-oom-exitcode": MEMORY,
    "ptj-outofcpu": (Cause.INFRA, "0 of 2000 used, 100000 requested"),
    "ptj-quota": (Cause.UNKNOWN, "the reason is unknown"),
    "trainjob-exit1-default": CODE,
}
ORPHANED = ["job-delete-running-default", "job-delete-running-orphan"]
# Jobs that the cluster refused to create, and a part of its refusal.
REFUSED = {
    "trainjob-runtime-just-created": "must be created before the TrainJob",
    "trainjob-runtime-missing": "must be created before the TrainJob",
    "vcjob-name-62": "no more than 63 bytes",
    "vcjob-queue-missing": "unable to find job queue",
    "job-name-63": "invalid DNS label",
}
PODS = {
    "pod-bookmarks": (None, ""),
    "pod-nodeaffinity": (Cause.INFRA, "NodeAffinity"),
    "pod-outofcpu": (Cause.INFRA, "OutOfcpu"),
    "pod-schedulinggated": (None, ""),
}
ALL = [SUCCEEDED, FAILED, CANCELLED, WAITING, GOES_ON, ORPHANED, REFUSED, PODS]
