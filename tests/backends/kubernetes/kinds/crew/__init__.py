"""A Crew of a made-up operator (crews 0.1)."""

from collections.abc import Iterator

from nbtorchjob.backends.kubernetes.kinds import Kind
from nbtorchjob.backends.kubernetes.objects.reading import Api, Use
from nbtorchjob.spec.jobspec import JobSpec

from .manifest import API, CONTAINER, manifests
from .status import facts, node


def cautions(spec: JobSpec, minor: int) -> Iterator[str]:
    """Yield a note on the consequence of a size."""
    if spec.launch.max_nodes > 1:
        yield "a Crew of several starts its captain first"


KIND = Kind(
    name="crew",
    about=__doc__,
    api=API,
    container=CONTAINER,
    manifests=manifests,
    facts=facts,
    node=node,
    can=frozenset(["backoff", "deadline", "ttl"]),
    operator="crews 0.1",
    install="helm install crews oci://example.org/charts/crews --version 0.1.0",
    notes={
        "clean pods": "a Crew keeps its ended pods",
        "backoff": "counts restarts of the whole crew",
        "suspend": "spec.ashore",
        "at once": "never",
    },
    suspend=("spec", "ashore"),
    cautions=cautions,
    uses=(Use("get", Api("crews.example.org", "v1", "rosters", "Roster"), "who is aboard"),),
)
