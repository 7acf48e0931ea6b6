"""``nbtorchjob tend``: tends jobs until a signal ends it, and reports on stderr what it does.

A separate module, as the tender's pod in a cluster imports it and has few libraries.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from nbtorchjob.backends import resending, tended
from nbtorchjob.errors import LineError
from nbtorchjob.frontends.cli import output
from nbtorchjob.machine import processes
from nbtorchjob.machine.folders import state_dir

LOG = "nbtorchjob.tending"
_POOLS_S = 5.0  # between two checks for jobs that were sent to pools
_MOST_PORT = 65535
_BASE, _OURS = "kustomization.yaml", "# Written by nbtorchjob tend --kustomize\n"


def tend(options: Mapping[str, Any]) -> None:
    """Tend jobs until SIGTERM or Ctrl-C, or print or write manifests that make a cluster do it."""
    if "manifests" in options or "kustomize" in options:
        manifests = tended().tenders(options.get("namespace", ()), options.get("image"))
        if "kustomize" in options:
            _write_base(Path(options["kustomize"]), manifests)
        else:
            output.answer(manifests)
        return
    processes.raise_open_files()  # here, too: a tender's pod runs no other part of the command
    address = options.get("listen")
    listen = str(state_dir() / f"tend-{os.getpid()}.sock") if address is None else _address(address)
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    log = logging.getLogger(LOG)
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    begin = partial(
        tended().tend, "nbtorchjob tend", options.get("namespace", ()), everyone="everyone" in options
    )
    try:
        tending = begin(listen=listen)
    except OSError as exc:
        why = f"can't use {listen!r}: {exc.strerror or exc}"
        if address is not None:
            raise LineError(f"nbtorchjob tend: --listen {why}") from exc
        tending = begin()
        output.beside(f"tending jobs; health and metrics aren't served without --listen: {why}")
    else:
        output.beside(f"tending jobs; health and metrics at {listen}")
    pools: Any = None
    while not stopped.is_set():
        if pools is None and any(resending.unfinished()):
            from nbtorchjob.pools import Sender  # late: a tender's pod has no such jobs, nor its imports

            pools = Sender(options.get("namespace", ()))
        if pools is not None:
            pools.look()
        stopped.wait(_POOLS_S)
    if tending is not None:
        tending.stop()


def _address(address: str) -> str:
    """Check and return the address of health and metrics: one that other machines could reach is refused."""
    if "/" in address or ":" not in address:
        return address  # the path of a socket
    host, _, port = address.rpartition(":")
    if host not in ("127.0.0.1", "localhost", "[::1]") or not (port.isdecimal() and int(port) <= _MOST_PORT):
        raise LineError(
            "nbtorchjob tend: --listen expects a local address such as 127.0.0.1:PORT, or the path of a "
            f"socket, got {address!r}"
        )
    return address.replace("[::1]", "::1")


def _write_base(folder: Path, manifests: str) -> None:
    """Write a kustomization and a file for each object, replacing those of an earlier call.

    Raises ``LineError`` for a folder with other content, or one that can't be written.
    Source: kustomize 5.5, ``kustomize.config.k8s.io/v1beta1``.
    """
    from nbtorchjob.backends.kubernetes.objects import from_yaml  # late, like all of the backend

    files = {}
    for text in manifests.split("---\n"):
        body = from_yaml(text)
        name = f"{body['kind']}-{body['metadata'].get('namespace', '')}-{body['metadata']['name']}"
        files[f"{re.sub('[^a-z0-9]+', '-', name.lower())}.yaml"] = text
    listed = "".join(f"  - {name}\n" for name in files)
    kind = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        base = folder / _BASE
        before = base.read_text(errors="replace") if base.exists() else ""
        if not before.startswith(_OURS) and any(folder.iterdir()):
            raise LineError(
                f"nbtorchjob tend: --kustomize expects an empty folder or one of its own, got {folder}"
            )
        for name in re.findall(r"^  - ([a-z0-9-]+\.yaml)$", before, re.MULTILINE):
            (folder / name).unlink(missing_ok=True)
        for name, text in files.items():
            (folder / name).write_text(text)
        base.write_text(f"{_OURS}{kind}resources:\n{listed}")
    except OSError as exc:
        raise LineError(f"nbtorchjob tend: --kustomize can't write {folder}: {exc.strerror}") from exc
    output.answer(f"{base} and {len(files)} objects; kubectl apply --server-side -k {folder}")
