"""What an account must be permitted on a cluster, why, and the Role for it (``docs/permissions.md``)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from docs._generate.markdown import code, table
from nbtorchjob.backends.kubernetes.doctor.server import (
    ALWAYS,
    BEATS,
    CLEANING,
    CLUSTERWIDE,
    ISOLATING,
    OPTIONAL,
    TENDING,
    TENDING_CLUSTERWIDE,
    rights,
)
from nbtorchjob.backends.kubernetes.doctor.server import own_rights as own
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects.reading import Use, grant

_INTRO = """# Permissions on a cluster

This page is generated from the table of API calls; a test runs jobs of every kind with exactly these
permissions. All belong to the user's own account, in the job's namespace: pods need none, and there is no
server component. `%torchjob doctor` asks the cluster about each permission that a job needs, and prints the
Role for the missing ones.

**An account that may read Secrets of a namespace can read all of them**, and one that may create jobs there
can have a pod mount any of them, or run as any service account. RBAC cannot express "only those of
nbtorchjob". So give jobs a namespace of their own, with nothing in it that its users may not have.

## What jobs need

"""
_OPTIONAL = """
## What a job runs without

If one of these is refused, nbtorchjob omits what it is for. It also omits jobs of kinds that it may not
list.

"""
_CLUSTERWIDE = """
The same for objects in no namespace, or in all of them, which need a ClusterRole:

"""
_BEATS = """
These let nbtorchjob say who looks after jobs, and let one of several tenders act
([tending.md](tending.md)):

"""
_TENDING = """
## What a tender of all users' jobs needs

`nbtorchjob tend --manifests` writes these for an account of its own, beside the permissions for the job
objects of each kind (`create get list watch patch delete`), for an Indexed Job's Service and for Volcano's
Commands:

"""
_ROLE = """
Beyond these, nbtorchjob only does what every account may do by default: it reads the server's version and
the APIs that it serves, and asks for its own name and permissions.

## The Role

It covers all kinds and options; leave out the kinds that you do not use.

"""
_HEADS = ("jobs", "resource", "verbs", "for")


def page() -> str:
    """Return the page, as Markdown."""
    needed = list(_needed())
    role = grant("NAME-OF-THE-USER", "NAMESPACE", rights([*(use for _, use in needed), *OPTIONAL, *BEATS]))
    return "".join(
        [
            *(_INTRO, table(_HEADS, (_row(jobs, use) for jobs, use in needed)), "\n"),
            *(
                _OPTIONAL,
                _uses(OPTIONAL),
                "\n",
                _BEATS,
                _uses(BEATS),
                "\n",
                _CLUSTERWIDE,
                _uses(CLUSTERWIDE),
                "\n",
            ),
            *(_ROLE, "```yaml\n", role, "```\n"),
            *(_TENDING, _uses((*TENDING, *TENDING_CLUSTERWIDE)), "\n"),
        ]
    )


def _needed() -> Iterator[tuple[str, Use]]:
    yield from (("all", use) for use in ALWAYS)
    for kind in KINDS.values():
        yield from ((code(kind.name), use) for use in (*own(kind), *kind.uses))
    yield from ((code("--clean-pod-policy"), use) for use in CLEANING)
    yield from ((code("--network-policy"), use) for use in ISOLATING)


def _uses(uses: Iterable[Use]) -> str:
    return table(_HEADS[1:], (_row("", use)[1:] for use in uses))


def _row(jobs: str, use: Use) -> tuple[str, str, str, str]:
    return jobs, code(next(iter(use.rights)).full_name), use.verbs, use.why
