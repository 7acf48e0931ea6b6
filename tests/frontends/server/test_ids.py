"""What a URL may call a job."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbtorchjob.errors import MalformedError
from nbtorchjob.frontends.server.ids import JobId, number
from nbtorchjob.state import JobInfo

LABELS = st.from_regex(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
CONTEXTS = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=256)


@given(name=LABELS)
def test_a_job_of_this_machine_is_called_by_its_name(name):
    found = JobId.parse(f"local:{name}")

    assert found == JobId("local", name)
    assert str(found) == JobInfo(name).id
    assert found.lane == "local"


@given(context=CONTEXTS, namespace=LABELS, name=LABELS)
def test_a_job_of_a_cluster_is_called_by_where_it_is(context, namespace, name):
    cluster = {"context": context, "namespace": namespace, "kind": "pytorchjob"}
    job = JobInfo(name, "kubernetes", cluster=cluster)
    found = JobId.parse(job.id)

    assert found == JobId("kubernetes", job.address)
    assert str(found) == job.id
    assert found.lane == (f"kubernetes:{context}" if context else "kubernetes")


def test_a_context_may_have_slashes_and_colons():
    found = JobId.parse("kubernetes:arn:aws:eks:eu-1:12:cluster/ml/team/train-2222")

    assert found.lane == "kubernetes:arn:aws:eks:eu-1:12:cluster/ml"


@pytest.mark.parametrize(
    "text",
    [
        *("", "train", "local", "local:", "local:..", "local:../x", "local:a/b", "local:/etc/passwd"),
        *("local:A", "local:a b", "local:a\n", "local:-a", "local:a-", f"local:{'a' * 64}", "slurm:a"),
        *("kubernetes:a", "kubernetes:/a", "kubernetes:ml/", "kubernetes:ml/..", "kubernetes:../a"),
        *("kubernetes:c\x00/ml/a", "kubernetes:c\n/ml/a", f"kubernetes:{'c' * 257}/ml/a", "KUBERNETES:ml/a"),
    ],
)
def test_what_is_no_id_is_refused_in_one_line(text):
    with pytest.raises(MalformedError, match="must be local:NAME or kubernetes:") as caught:
        JobId.parse(text)

    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("text", ["", "-1", "1.5", "0x1", "one", "\u0661", " 1", "9" * 16])
def test_a_number_counts_something(text):
    assert number("rank", "0012") == 12
    with pytest.raises(MalformedError, match="rank: got"):
        number("rank", text)
