"""The Jupyter Server extension: what a page can do with jobs while the kernel is busy, or gone.

It asks the backends, as a kernel does, and remembers only their latest answers; it runs no user code
and unpickles nothing. Below the server's base URL, with ``<id>`` a percent-encoded ``JobId``:

    GET     nbtorchjob/api/jobs                     every job of this user
    GET     nbtorchjob/api/jobs/<id>                one job
    DELETE  nbtorchjob/api/jobs/<id>                end it and remove all that is kept of it
    GET     nbtorchjob/api/jobs/<id>/card           the job's card, as HTML
    GET     nbtorchjob/api/jobs/<id>/describe       everything that is known of it, as text
    GET     nbtorchjob/api/jobs/<id>/page           the same, its options and its code, as data
    GET     nbtorchjob/api/jobs/<id>/manifests      the objects that run it on a cluster, as YAML
    GET     nbtorchjob/api/jobs/<id>/logs/<rank>    a rank's log, whole or a part
    GET     nbtorchjob/api/jobs/<id>/logs           a websocket: every byte of its logs, once
    GET     nbtorchjob/api/jobs/<id>/logs.zip       all ranks' logs
    GET     nbtorchjob/api/jobs/<id>/artifacts      files that its ranks left; artifacts.zip has their content
    GET     nbtorchjob/api/jobs/<id>/files          files that its ranks have written so far
    GET     nbtorchjob/api/jobs/<id>/file?file=     the content of one of them
    PUT     nbtorchjob/api/jobs/<id>/note           its note and tags
    POST    nbtorchjob/api/jobs/<id>/cancel         likewise suspend, resume, start, end, stacks
    GET     nbtorchjob/api/jobs/<id>/values         the plain values that its code reads
    POST    nbtorchjob/api/jobs/<id>/values?value=  set some of them as it runs, lr=1e-4
    POST    nbtorchjob/api/jobs/<id>/retry          run it again, as a new job; continue: from its checkpoints
    GET     nbtorchjob/api/compare?job=<id>&job=…   several jobs compared, as data
    GET     nbtorchjob/api/options                  JSON Schema of a profile: every option
    GET     nbtorchjob/api/profiles?path=           the profiles that a notebook there finds
    POST    nbtorchjob/api/doctor?profile=&path=    whether everything that such a job needs is there
    GET     nbtorchjob/api/openapi.json             all of this for programs: made from ``app.ROUTES``

An error is JSON, ``{"message": …, "reason": …}``, with a message of one line that says what to do: 400 for a
malformed id, number or path, 403 for a caller without permission, 404 for a job that doesn't exist, 409 for
what can't be done to it and for an invalid file of profiles, 426 for a plain request to a websocket, 501 if
the server lacks a package, 502 if a cluster refuses and 504 if it doesn't answer.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, Any]]:
    """Return the extension for Jupyter Server to load (its hook)."""
    from nbtorchjob.frontends.server.app import TorchJobApp

    return [{"module": "nbtorchjob.frontends.server", "app": TorchJobApp}]
