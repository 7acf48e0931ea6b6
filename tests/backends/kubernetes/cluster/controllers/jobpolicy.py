"""When a Job ends: back-off limits, deadlines, pod failure policies, success policies."""

from tests.backends.kubernetes.cluster.controllers import facts
from tests.backends.kubernetes.cluster.controllers.indexedpod import FAILURES, IGNORED, counted
from tests.backends.kubernetes.cluster.resources import Object
from tests.backends.kubernetes.cluster.store import age

LIMIT = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
DEADLINE = "DeadlineExceeded", "Job was active longer than specified deadline"
FAILED_INDEXES = "FailedIndexes", "Job has failed indexes"
TOO_MANY_INDEXES = (
    "MaxFailedIndexesExceeded",
    "Job has exceeded the specified maximal number of failed indexes",
)
REACHED = "CompletionsReached", "Reached expected number of succeeded pods"
SUCCESS_POLICY = "SuccessPolicy", "Matched rules at index 0"


def matched(job: Object, pod: Object) -> tuple[int, Object] | None:
    """Return the index and the rule of the first match in the pod failure policy."""
    if facts.phase(pod) != "Failed":
        return None
    for place, rule in enumerate(job["spec"].get("podFailurePolicy", {}).get("rules", ())):
        if "onExitCodes" in rule and _exit_code_matches(rule["onExitCodes"], pod):
            return place, rule
        for pattern in rule.get("onPodConditions", ()):
            condition = facts.condition(pod, pattern["type"])
            if condition and condition["status"] == pattern.get("status", "True"):
                return place, rule
    return None


def _exit_code_matches(rule: Object, pod: Object) -> bool:
    code = facts.exit_code(pod, rule.get("containerName") or "")
    if not code:
        return False
    return bool((code in rule["values"]) == (rule["operator"] == "In"))


def action(job: Object, pod: Object) -> str:
    """Return the policy's action for a failed pod: Count if no rule matches."""
    match = matched(job, pod)
    return str(match[1]["action"]) if match else "Count"


def fails_index(job: Object, pod: Object) -> bool:
    """Return whether a pod's end fails its index, if indexes have a limit of their own."""
    limit = job["spec"].get("backoffLimitPerIndex")
    if limit is None or facts.phase(pod) != "Failed":
        return False
    decision = action(job, pod)
    return decision == "FailIndex" or (decision != "Ignore" and counted(pod, FAILURES) >= limit)


def notes_after(job: Object, pod: Object | None) -> Object:
    """Return the annotations of the pod after a failed one, if indexes have a limit of their own."""
    if "backoffLimitPerIndex" not in job["spec"]:
        return {}
    failed, ignored = (0, 0) if pod is None else (counted(pod, FAILURES), counted(pod, IGNORED))
    if pod is not None and action(job, pod) == "Ignore":
        ignored += 1
    elif pod is not None:
        failed += 1
    return {FAILURES: str(failed)} | ({IGNORED: str(ignored)} if ignored else {})


def failure(
    job: Object,
    status: Object,
    pods: list[Object],
    failed: int,
    lost_indexes: list[int],
    completed: list[int],
) -> tuple[str, str] | None:
    """Return (reason, message) if the job has failed; any success policy is checked after that."""
    spec = job["spec"]
    for pod in pods:
        match = matched(job, pod)
        if match and match[1]["action"] == "FailJob":
            return "PodFailurePolicy", _told(job, pod, *match)
    limit = spec["backoffLimit"]
    if failed > limit or _restarted_too_often(job, pods):
        return LIMIT
    deadline = spec.get("activeDeadlineSeconds")
    started = status.get("startTime")
    if deadline is not None and started and not spec.get("suspend") and age(started) >= deadline:
        return DEADLINE
    most = spec.get("maxFailedIndexes")
    if most is not None and len(lost_indexes) > most:
        return TOO_MANY_INDEXES
    # This ignores that the job may yet succeed by its policy, or just has.
    if lost_indexes and len(lost_indexes) + len(completed) >= spec["completions"]:
        return FAILED_INDEXES
    return None


def _restarted_too_often(job: Object, pods: list[Object]) -> bool:
    spec = job["spec"]
    if spec["template"]["spec"]["restartPolicy"] != "OnFailure":
        return False
    count = sum(facts.restarts(pod) for pod in pods if facts.phase(pod) in ("Running", "Pending"))
    return count > 0 if spec["backoffLimit"] == 0 else count >= spec["backoffLimit"]


def _told(job: Object, pod: Object, place: int, rule: Object) -> str:
    space, name = job["metadata"]["namespace"], pod["metadata"]["name"]
    if "onExitCodes" in rule:
        status = pod["status"]["containerStatuses"][0]
        code = status["state"]["terminated"]["exitCode"]
        cause = f"Container {status['name']} for pod {space}/{name} failed with exit code {code}"
    else:
        cause = f"Pod {space}/{name} has condition {rule['onPodConditions'][0]['type']}"
    return f"{cause} matching FailJob rule at index {place}"


def success(job: Object, completed: list[int], lost_indexes: list[int]) -> tuple[str, str] | None:
    """Return (reason, message) if the job has succeeded."""
    spec = job["spec"]
    for rule in spec.get("successPolicy", {}).get("rules", ()):
        indexes = {int(index) for index in rule.get("succeededIndexes", "").split(",") if index}
        have = indexes & set(completed) if indexes else set(completed)
        if have and len(have) >= rule.get("succeededCount", len(indexes)):
            return SUCCESS_POLICY
    return REACHED if len(completed) >= spec["completions"] and not lost_indexes else None
