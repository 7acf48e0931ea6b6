"""A tender that runs in a cluster, and a policy on later attempts: manifests that an administrator applies.

The tender looks after all users' jobs in some namespaces. Its program travels in Secrets, like a payload, so
any image with Python will do; the other packages that it needs have a pure-Python form, which is included.

Under the policy, only a user who may change a job may make its later attempts. A later attempt is recognized
by its name, its labels and its owner's uid, which any user who may create job objects in a namespace can
write. Kubernetes doesn't record who created an object, so only the API server can check that, when it is
created: by a ValidatingAdmissionPolicy (admissionregistration.k8s.io/v1, Kubernetes 1.30).
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from nbtorchjob import errors
from nbtorchjob.backends.kubernetes.doctor import server
from nbtorchjob.backends.kubernetes.kinds import KINDS
from nbtorchjob.backends.kubernetes.objects import labelling, to_yaml
from nbtorchjob.backends.kubernetes.objects.reading import Api, grant

NAME = "nbtorchjob-tender"
IMAGE = f"python:{sys.version_info.major}.{sys.version_info.minor}-slim"
PLACE = "/etc/nbtorchjob"
_SOCKET = "/tmp/tend.sock"  # in the pod's own emptyDir
# Code that draws notebooks and pages, or reads what is typed.
_NOT_THERE = (
    "labextension",
    "commands",
    "ui",
    *(f"frontends/{front}" for front in ("notebook", "panel", "server")),
)
_LIBRARIES = ("aiohttp", "cloudpickle", "platformdirs")
_PART_BYTES = 1_000_000  # of an archive in a Secret, which holds 1 MiB
_BOOT = """
import glob, json, sys
archives = []
for what in ("program", "libraries"):
    archives.append("/tmp/%s.zip" % what)
    with open(archives[-1], "wb") as whole:
        for part in sorted(glob.glob("{place}/%s.zip.*" % what)):
            with open(part, "rb") as file:
                whole.write(file.read())
sys.path[:0] = archives
from nbtorchjob.frontends.cli.tending import tend
tend(json.loads(sys.argv[1]))
""".replace("{place}", PLACE)
_ASK = (
    "import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(5); s.connect('{socket}'); "
    "s.send(b'GET /healthz HTTP/1.0\\r\\n\\r\\n'); s.recv(1)"
).replace("{socket}", _SOCKET)
# Libraries with fast parts that aren't Python, and can't be imported from an archive.
_PURE = ("AIOHTTP", "FROZENLIST", "MULTIDICT", "PROPCACHE", "YARL")


def manifests(namespaces: Sequence[str], image: str = IMAGE) -> str:
    """Return the YAML of a tender in the first of the namespaces, for jobs in all of them.

    Apply it on the server's side (``--server-side``): its Secrets are too big for plain ``kubectl apply``.
    """
    with errors.needs_extra("kubernetes", "a tender"):
        home, secrets = namespaces[0], [*_secrets(namespaces[0])]
    account = f"system:serviceaccount:{home}:{NAME}"
    shared = server.rights(server.TENDING_CLUSTERWIDE)
    labels = {"app.kubernetes.io/name": NAME}
    digest = hashlib.sha256(json.dumps([obj["data"] for obj in secrets]).encode()).hexdigest()
    pod = {
        "serviceAccountName": NAME,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(namespaces, image)],
        "volumes": [
            {
                "name": "program",
                "projected": {
                    "sources": [{"secret": {"name": secret["metadata"]["name"]}} for secret in secrets]
                },
            },
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _meta(namespaces[0]),
        "spec": {
            "replicas": 1,  # with more, one looks after the jobs, and the others wait to take over
            "selector": {"matchLabels": {**labels}},
            "template": {
                "metadata": {"labels": labels, "annotations": {f"{NAME}/digest": digest}},
                "spec": pod,
            },
        },
    }
    parts = [
        to_yaml({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _meta(home)}),
        *(grant(account, namespace, server.tender_rights(), NAME) for namespace in namespaces),
        grant(account, None, shared, NAME),
        *map(to_yaml, secrets),
        to_yaml(deployment),
        # Last: a server that doesn't have this API yet refuses only these.
        *map(to_yaml, policy(NAME, namespaces, [kind.api for kind in KINDS.values()])),
    ]
    return "---\n".join(parts)


def _container(namespaces: Sequence[str], image: str) -> dict[str, Any]:
    options = {"everyone": True, "listen": _SOCKET, "namespace": [*namespaces]}
    env = {"NBTORCHJOB_STATE_DIR": "/tmp/nbtorchjob", "PYTHONUNBUFFERED": "1"}
    env |= {f"{name}_NO_EXTENSIONS": "1" for name in _PURE}
    # A name that no user has: else it would take jobs of the container's user for its own, and save their
    # values here before it removes them, for which it would need Secrets that it may not read.
    env["LOGNAME"] = NAME
    return {
        "name": "tender",
        "image": image,
        "command": ["python", "-c", _BOOT, json.dumps(options)],
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "livenessProbe": {
            "exec": {"command": ["python", "-c", _ASK]},
            "initialDelaySeconds": 15,
            "periodSeconds": 60,
            "timeoutSeconds": 10,
        },
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "program", "mountPath": PLACE, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def _secrets(namespace: str) -> Iterator[dict[str, Any]]:
    for stem, files in (("program", _program()), ("libraries", _libraries())):
        # An archive that is reproducible: the same for the same files
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for zipped_name, data in files:
                archive.writestr(zipfile.ZipInfo(zipped_name), data, zipfile.ZIP_DEFLATED)
        data = out.getvalue()
        for number, at in enumerate(range(0, len(data), _PART_BYTES), 1):
            name = f"{NAME}-{stem}" if number == 1 else f"{NAME}-{stem}-{number}"
            part = base64.b64encode(data[at : at + _PART_BYTES]).decode()
            yield {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": _meta(namespace, name),
                "data": {f"{stem}.zip.{number}": part},
            }


def _program() -> Iterator[tuple[str, bytes]]:
    """Yield the files of this package that a tender needs."""
    root = Path(__file__).parents[2]
    for path in sorted(root.rglob("*.py")):
        inside = path.relative_to(root).as_posix()
        if not inside.startswith(tuple(f"{folder}/" for folder in _NOT_THERE)):
            yield f"{root.name}/{inside}", path.read_bytes()


def _libraries() -> Iterator[tuple[str, bytes]]:
    """Yield the Python files of the libraries that the program needs."""
    from packaging.requirements import Requirement

    closure, todo = set[str](), [*_LIBRARIES]
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name not in closure:
            closure.add(name)
            needs = map(Requirement, metadata.requires(name) or ())
            todo += [need.name for need in needs if not need.marker or need.marker.evaluate({"extra": ""})]
    for name in sorted(closure):
        for path in metadata.files(name) or ():
            if path.suffix == ".py" and ".." not in path.parts:
                yield str(path), Path(str(path.locate())).read_bytes()


def _meta(namespace: str, name: str = NAME) -> dict[str, Any]:
    return {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": NAME}}


_VERSION = "admissionregistration.k8s.io/v1"
_LABELS = "object.metadata.labels"
_BEFORE = "oldObject.metadata.labels"
_OWN = (labelling.JOB, labelling.RUN, labelling.USER, labelling.ATTEMPT)
_NUMBERED = f"has({_LABELS}) && '{labelling.ATTEMPT}' in {_LABELS} && {_LABELS}['{labelling.ATTEMPT}'] != '1'"
# An object is created, or its nbtorchjob labels change: operators update the rest.
_ANEW = f"oldObject == null || !has({_BEFORE}) || " + " || ".join(
    f"('{label}' in {_BEFORE} ? {_BEFORE}['{label}'] : '') != "
    f"('{label}' in {_LABELS} ? {_LABELS}['{label}'] : '')"
    for label in _OWN
)
_JOB = f"{_LABELS}['{labelling.JOB}']"
_ASKS = (
    "authorizer.group(request.resource.group).resource(request.resource.resource)"
    f".namespace(request.namespace).name({_JOB}).check('patch').allowed()"
)


def policy(name: str, namespaces: Sequence[str], apis: Iterable[Api]) -> list[dict[str, Any]]:
    """Return the policy for job objects of these kinds, and its binding to the namespaces."""
    rules = [
        {
            "apiGroups": [api.group],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": [api.plural],
        }
        for api in apis
    ]
    named = f"object.metadata.name == {_JOB} + '-a' + {_LABELS}['{labelling.ATTEMPT}']"
    owned = (
        "has(object.metadata.ownerReferences) && "
        f"object.metadata.ownerReferences.exists(owner, owner.name == {_JOB})"
    )
    # If the label that names its job is missing, each is an error, which refuses the object, too.
    validations = [
        (named, "must be named after its job"),
        (owned, "must be owned by its job"),
        (_ASKS, "must be created by a user who may patch its job"),
    ]
    return [
        {
            "apiVersion": _VERSION,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": rules},
                "matchConditions": [
                    {"name": "a-later-attempt", "expression": _NUMBERED},
                    {"name": "made-or-labelled-anew", "expression": _ANEW},
                ],
                "validations": [
                    {
                        "expression": expression,
                        "message": f"a later attempt of an nbtorchjob job {requirement}",
                        "reason": "Forbidden",
                    }
                    for expression, requirement in validations
                ],
            },
        },
        {
            "apiVersion": _VERSION,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {
                "policyName": name,
                "validationActions": ["Deny"],
                "matchResources": {
                    "namespaceSelector": {
                        "matchExpressions": [
                            {
                                "key": "kubernetes.io/metadata.name",
                                "operator": "In",
                                "values": [*namespaces],
                            }
                        ]
                    }
                },
            },
        },
    ]
