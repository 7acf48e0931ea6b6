"""What the API's answers mean, and why none comes, each in one line with what to do.

Sources: the answers of a real Kubernetes 1.36 with the operators' webhooks. The HTTP code alone says
little: a 403 is a missing permission, a quota, a webhook that refuses, or a namespace that is going
away, and only its message tells which; a 404 that isn't a ``Status`` object means that the cluster doesn't
serve that kind at all.

Something that a job names and its namespace lacks is recognized by the messages of admission plugins.

These plugins check pods. So the answer to the creation of a job holds their messages only if an operator's
webhook passes them on; else they come later, in an event about a pod that couldn't be created.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple, TypeAlias

from nbtorchjob.backends.kubernetes.api import kubeconfig
from nbtorchjob.backends.kubernetes.objects.reading import Target, grant
from nbtorchjob.errors import (
    AlreadyExistsError,
    ApiError,
    ClusterError,
    ForbiddenError,
    NotFoundError,
    SubmitError,
    UnauthorizedError,
    UnreachableError,
)
from nbtorchjob.machine import processes
from nbtorchjob.text.hints import hint

_LACKS = (
    (r'serviceaccounts? "([^"]*)" not found', "service account", "--service-account"),
    (r"no PriorityClass with name (\S+) was found", "priority class", "--priority-class"),
    (r'persistentvolumeclaims? "([^"]*)" not found', "claim", "--mount"),
)


def missing(message: str) -> str | None:
    """Describe what doesn't exist and which option names it; None for any other message."""
    for pattern, kind, option in _LACKS:
        match = re.search(pattern, message)
        if match:
            return f'the {kind} "{match[1]}" doesn\'t exist: choose an existing one with {option}'
    return None


_LONGEST = 400  # characters of the server's own words: Volcano lists every event and action it knows


_KINDS: Mapping[int, type[ApiError]] = {
    HTTPStatus.UNAUTHORIZED: UnauthorizedError,
    HTTPStatus.FORBIDDEN: ForbiddenError,
    HTTPStatus.NOT_FOUND: NotFoundError,
}


def api_error(verb: str, target: Target, status: int, body: bytes) -> ApiError:
    """Return the error for an answer of 400 and above to ``verb`` (an RBAC verb) on ``target``."""
    answer = _Answer.read(verb, target, status, body)
    words = next(filter(None, (rule(answer) for rule in _RULES)))
    exists = verb == "create" and answer.reason == "AlreadyExists"
    kind = AlreadyExistsError if exists else _KINDS.get(status, ApiError)
    denied = _DENIED.search(answer.message)
    if not denied or denied["user"] == _ANONYMOUS:
        granting = ""
    else:
        granting = grant(
            denied["user"], denied["namespace"], [(denied["verb"], denied["group"], denied["resource"])]
        )
    return kind(
        " ".join(words.split()), status=status, reason=answer.reason, said=answer.message, grant=granting
    )


class _SubmitClusterError(SubmitError, ClusterError):
    pass


class _SubmitUnreachableError(SubmitError, UnreachableError):
    pass


class _SubmitApiError(SubmitError, ApiError):
    pass


class _SubmitUnauthorizedError(SubmitError, UnauthorizedError):
    pass


class _SubmitForbiddenError(SubmitError, ForbiddenError):
    pass


class _SubmitNotFoundError(SubmitError, NotFoundError):
    pass


# The first match counts.
_SUBMITTING: tuple[tuple[type[ClusterError], type[SubmitError]], ...] = (
    (UnreachableError, _SubmitUnreachableError),
    (UnauthorizedError, _SubmitUnauthorizedError),
    (ForbiddenError, _SubmitForbiddenError),
    (NotFoundError, _SubmitNotFoundError),
    (ApiError, _SubmitApiError),
    (ClusterError, _SubmitClusterError),
)


def submit_error(error: ClusterError) -> SubmitError:
    """Return ``error``, which the submission of a job ran into, as a ``SubmitError`` of the same kind."""
    if isinstance(error, SubmitError):
        return error
    translated = next(own for kind, own in _SUBMITTING if isinstance(error, kind))(str(error))
    vars(translated).update(vars(error))
    return translated


class _Answer(NamedTuple):
    verb: str
    target: Target
    status: int
    reason: str
    message: str
    details: Mapping[str, Any]
    is_status: bool

    @classmethod
    def read(cls, verb: str, target: Target, status: int, body: bytes) -> _Answer:
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if not (isinstance(answer, dict) and answer.get("kind") == "Status"):
            text = " ".join(body.decode("utf-8", "replace").split())
            return cls(verb, target, status, "", text[:_LONGEST], {}, is_status=False)
        reason, message = (str(answer.get(key) or "") for key in ("reason", "message"))
        # A Status' details; none if they aren't as an API server would send them
        details = answer.get("details")
        if not isinstance(details, dict):
            detail_text = {}
        else:
            causes = details.get("causes")
            good = isinstance(causes, list) and all(isinstance(cause, dict) for cause in causes)
            detail_text = {**details, "causes": causes if good else []}
        return cls(verb, target, status, reason, message, detail_text, is_status=True)


_Rule: TypeAlias = Callable[[_Answer], "str | None"]
_RULES: list[_Rule] = []


def _rule(rule: _Rule) -> _Rule:
    """Append a rule: the first one that recognizes an answer describes it.

    A message about a missing permission quotes names that later rules look for.
    """
    _RULES.append(rule)
    return rule


_DENIED = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" in API group '
    r'"(?P<group>[^"]*)"(?: in the namespace "(?P<namespace>[^"]*)"| at the cluster scope)'
)
_ANONYMOUS = "system:anonymous"
_LOGIN = "log in again, or choose another --context"


@_rule
def _credentials(answer: _Answer) -> str | None:
    if answer.status == 401:
        return f"the cluster doesn't accept the credentials (401), they may have expired: {_LOGIN}"
    if answer.status == 403 and f'User "{_ANONYMOUS}"' in answer.message:
        return f"the request was sent without credentials, because the kubeconfig's user has none: {_LOGIN}"
    return None


@_rule
def _permission(answer: _Answer) -> str | None:
    denied = _DENIED.search(answer.message)
    if not denied:
        return None
    user, verb, resource, group, namespace = denied.groups()
    kind = f"{resource}.{group}" if group else resource
    where = f'in namespace "{namespace}"' if namespace else "in the cluster"
    # A namespace that doesn't exist looks the same to somebody without rights in it.
    doubt = " (or the namespace doesn't exist)" if namespace else ""
    return (
        f'user "{user}" may not {verb} {kind} {where}{doubt}: ask an administrator for a '
        f"{'' if namespace else 'Cluster'}RoleBinding ({hint('doctor')} prints it)"
    )


@_rule
def _exec(answer: _Answer) -> str | None:
    # A websocket is opened by GET, which is a get to RBAC; from 1.35 on the server requires create, too, and
    # doesn't say so (1.36).
    if (
        answer.status != 403
        or answer.target.part != "exec"
        or not re.search(r" is forbidden: *$", answer.message)
    ):
        return None
    return (
        "you may get pods/exec, but not create it, which Kubernetes requires since 1.35: ask an "
        f"administrator for a RoleBinding ({hint('doctor')} prints it)"
    )


@_rule
def _webhook(answer: _Answer) -> str | None:
    denied = re.search(r'admission webhook "([^"]*)" denied the request: (.*)', answer.message, re.DOTALL)
    if not denied:
        return None
    name, why = denied.groups()
    why = why.partition("\n\n")[0].strip().rstrip(";")
    missing = re.search(r'(queue|trainingruntime)\S* "([^"]*)" not found', why, re.IGNORECASE)
    if missing:
        option = "queue" if missing[1].lower() == "queue" else "runtime"
        advice = f"choose an existing one with --{option}, or ask an administrator to create it"
        return f'the {option} "{missing[2]}" doesn\'t exist: {advice}'
    return f"the webhook {name} refuses {answer.target}: {why[:_LONGEST]}"


@_rule
def _quota(answer: _Answer) -> str | None:
    if answer.status != 403 or "quota" not in answer.message:
        return None
    if "must specify" in answer.message:
        return f"the quota requires every resource to be set ({_why(answer)}): give --cpu, --memory"
    delete = f"delete finished jobs with {hint('gc')}"
    return f"quota exceeded ({_why(answer)}): ask for less, {delete}, or wait"


@_rule
def _namespace(answer: _Answer) -> str | None:
    name = answer.target.namespace
    causes = answer.details.get("causes") or ()
    if any(cause.get("reason") == "NamespaceTerminating" for cause in causes):
        return f'the namespace "{name}" is being deleted: wait for its end, or choose another --namespace'
    if answer.status == 404 and answer.details.get("kind") == "namespaces":
        return f'the namespace "{answer.details.get("name")}" doesn\'t exist: choose one with --namespace'
    return None


@_rule
def _missing(answer: _Answer) -> str | None:
    return missing(answer.message)


@_rule
def _absence(answer: _Answer) -> str | None:
    if answer.status != 404:
        return None
    if answer.is_status:
        return f"{answer.target} doesn't exist"
    api = answer.target.api
    return (
        f"the cluster doesn't serve {api} ({api.version}): its operator isn't installed, or not in that "
        f"version; choose another --kind, or ask an administrator"
    )


@_rule
def _too_large(answer: _Answer) -> str | None:
    text = answer.message
    if answer.status != 413 and "request is too large" not in text and "Too long: may not be" not in text:
        return None
    return f"{answer.target} is too large ({text[:_LONGEST]}): pass less to the cell, or set --storage"


@_rule
def _conflict(answer: _Answer) -> str | None:
    if answer.reason == "AlreadyExists":
        return f"{answer.target} exists already: choose another name with --name"
    if answer.status == 409:
        return f"{answer.target} has changed in the meantime ({answer.message[:_LONGEST]}): try again"
    return None


@_rule
def _invalid(answer: _Answer) -> str | None:
    if answer.status != 422:
        return None
    causes = [
        f"{cause.get('field', '')}: {cause.get('message', '')}"
        for cause in answer.details.get("causes") or ()
        if "rules were not checked" not in str(cause.get("message", ""))
    ]
    why = "; ".join(dict.fromkeys(causes)) or answer.message
    return f"the cluster refuses {answer.target} as invalid: {why[:_LONGEST]}"


@_rule
def _busy(answer: _Answer) -> str | None:
    if answer.status != 429 and answer.status < 500:
        return None
    return (
        f"the cluster couldn't {answer.verb} {answer.target} just now "
        f"({answer.status} {answer.message[:_LONGEST]}): try again in a while"
    )


@_rule
def _other(answer: _Answer) -> str:
    return (
        f"the cluster refuses to {answer.verb} {answer.target} ({answer.status}): {_why(answer)[:_LONGEST]}"
    )


def _why(answer: _Answer) -> str:
    """Return the message without the sentence that every 403 starts with."""
    return answer.message.partition(" is forbidden: ")[2] or answer.message


class OpenFilesError(ClusterError):
    """This process may not open another connection."""

    def __init__(self) -> None:
        most = processes.most_open_files()
        super().__init__(f"this process may have only {most:,} files open: raise that limit (ulimit -n)")


@contextmanager
def in_plain_words(server: str, through: str | None = None) -> Iterator[None]:
    """Turn what aiohttp raises for a server, ``through`` a proxy, into ``UnreachableError``."""
    import aiohttp

    try:
        yield
    # aiohttp's timeouts are asyncio's, which are the builtin ones only from Python 3.11 on.
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
        if getattr(getattr(error, "os_error", error), "errno", 0) == errno.EMFILE:
            raise OpenFilesError from error
        # Say in a few plain words why nothing answers, without those of aiohttp
        cause = getattr(error, "os_error", None) or getattr(error, "certificate_error", None) or error
        if isinstance(cause, ssl.SSLCertVerificationError):
            if cause.verify_code == _EXPIRED:
                why = "its certificate has expired"
            elif cause.verify_code in (_OF_ANOTHER_HOST, _OF_ANOTHER_IP):
                why = "its certificate is of another host"
            else:
                why = "its certificate isn't signed by the kubeconfig's certificate authority"
        elif isinstance(cause, ssl.SSLError):
            why = "it doesn't speak TLS as expected: another port, or http:// in place of https://"
        elif isinstance(cause, asyncio.TimeoutError):
            why = "timed out"
        elif isinstance(cause, ConnectionRefusedError):
            why = os.strerror(errno.ECONNREFUSED)  # asyncio's own word is "Connect call failed"
        elif isinstance(cause, OSError) and cause.strerror:
            why = cause.strerror
        else:
            why = "the connection broke off"
        proxied = isinstance(error, aiohttp.ClientProxyConnectionError | aiohttp.ClientHttpProxyError)
        if proxied and through:
            proxy = kubeconfig.proxy_name(through, server)
            raise UnreachableError(f"{proxy} doesn't answer ({why}): start or change it") from error
        text = f"the cluster at {server} doesn't answer ({why}): check the network, or --context"
        raise UnreachableError(text) from error


# OpenSSL's error codes for certificates (x509_vfy.h).
_EXPIRED, _OF_ANOTHER_HOST, _OF_ANOTHER_IP = 10, 62, 64
