"""Writes a call as one file, the payload (its layout: ``runtime/store/payload.py``)."""

from __future__ import annotations

import hashlib
import io
import json
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

from nbtorchjob.machine import folders
from nbtorchjob.payload import program
from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.install import packages, stock
from nbtorchjob.runtime.lab import TURN
from nbtorchjob.runtime.objects.wire import ALIGN, sign
from nbtorchjob.runtime.rank import settings
from nbtorchjob.runtime.store import payload as wire
from nbtorchjob.spec import config
from nbtorchjob.spec.jobspec import JobSpec

if TYPE_CHECKING:
    from nbtorchjob.capture import Call


def write(
    file: BinaryIO,
    call: Call,
    spec: JobSpec,
    key: bytes,
    *,
    env: Mapping[str, str] = MappingProxyType({}),
    sweep: str = "",
) -> int:
    """Write the payload of ``call`` under ``spec`` to ``file``, signed with ``key``; return its size.

    Big buffers go from the captured objects to the file without a copy in between. A job in a pool also gets
    ``env``; if it is a run of a group, ``sweep`` describes the group (``TurnTaken.sweep``).
    """
    size, buffers = _buffers(file, call, remote=spec.remote)
    archive = _archive(call, spec, buffers, key, env, sweep)
    return size + file.write(sign(archive, key)) + file.write(archive)


def write_turn(file: BinaryIO, call: Call, key: bytes, spec: JobSpec, *, push: Sequence[str] = ()) -> int:
    """Write the payload of a lab's turn to ``file``, without the program; return its size.

    ``spec`` is the lab's spec, with the turn's own options; ``push`` are the names whose values replace
    those that the ranks have.
    """
    header = {
        "all_ranks": spec.all_ranks,
        "locals": not spec.no_locals,
        "push": [*push],
        "turn": _turn(call),
        "settings": {},
    }
    return _write_later(file, call, key, header, remote=spec.remote)


def write_swap(file: BinaryIO, call: Call, key: bytes, words: Mapping[str, Any], *, remote: bool) -> int:
    """Write the payload of code that a running job's ranks go on with; return its size.

    ``words`` are the fields of the swap that nodes and ranks read (``runtime/node/swaps``).
    """
    return _write_later(file, call, key, {"swap": dict(words)}, remote=remote)


def with_swaps(payload: bytes, key: bytes, swaps: Sequence[bytes]) -> bytes:
    """Return a payload that begins with swapped code: with the payloads ``swaps``, in that order.

    They come after those that it already has, if its own job began with some.
    Raises ``PayloadError`` if one of them wasn't signed with the job's key.
    """
    with tempfile.NamedTemporaryFile() as file:
        for swap in swaps:
            Path(file.name).write_bytes(swap)
            wire.Payload(file.name).verify_signature(key)
    with zipfile.ZipFile(io.BytesIO(payload)) as whole:
        begin = min(member.header_offset for member in whole.infolist())
        count = sum(name.startswith(wire.SWAPS) for name in whole.namelist())
    out = io.BytesIO(payload[begin:])
    with zipfile.ZipFile(out, "a", zipfile.ZIP_STORED) as archive:
        for number, swap in enumerate(swaps, count + 1):
            archive.writestr(f"{wire.SWAPS}{number}", swap)
    signed = out.getvalue()
    return payload[: begin - wire.MARK] + sign(signed, key) + signed


def _write_later(file: BinaryIO, call: Call, key: bytes, words: Mapping[str, Any], *, remote: bool) -> int:
    """Write a payload for ranks that are already running."""
    size, buffers = _buffers(file, call, remote=remote)
    header = {"format": wire.FORMAT, "python": sys.version_info[:2], "buffers": buffers, **words}
    out = io.BytesIO()
    # On this machine, compressing a cell and decompressing it on each rank takes longer than copying it.
    how = zipfile.ZIP_DEFLATED if remote else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", how, compresslevel=1) as archive:
        _pack(archive, call, remote=remote)
        archive.writestr(wire.HEADER, json.dumps(header))
    data = out.getvalue()
    return size + file.write(sign(data, key)) + file.write(data)


# A rank uses nbtorchjob through one of these, or through its imports.
_OURS = {"nbtorchjob", *(f"nbtorchjob.runtime.api.{name}" for name in ("report", "sampler", "training"))}
_SILENT = {*sys.stdlib_module_names, "torch", "cloudpickle", "nbtorchjob"}
# In a cell's text, and in a pickle's names, with their lengths: a plain search, as a pickle may have 100 MB
_RUNS_OTHER_CODE = (b"exec(", b"\x04exec", b"__import__", b"importlib", b"runpy")


def _buffers(file: BinaryIO, call: Call, *, remote: bool) -> tuple[int, list[dict[str, Any]]]:
    """Write the buffers; return their size, and where each one lies."""
    size = 0
    buffers: list[dict[str, Any]] = []
    for view in call.buffers:
        size += file.write(b"\0" * (-size % ALIGN))
        buffers.append({"offset": size, "size": view.nbytes})
        if remote:  # on this machine they are data in this user's own file, as a value's buffers are
            buffers[-1]["sha256"] = hashlib.sha256(view).hexdigest()
        size += file.write(view)
    return size, buffers


def _pack(archive: zipfile.ZipFile, call: Call, *, remote: bool) -> None:
    """Write the call's own parts: its pickle, the text of its code, and its local modules."""
    archive.writestr(wire.CALL, call.pickle)
    archive.writestr(wire.SOURCES, json.dumps(dict(call.sources)))
    if remote and call.sourced:
        archive.writestr(wire.CODE, json.dumps(call.table))
    for file in call.files:
        if remote or not file.elsewhere:
            archive.writestr(wire.FILES + file.path, file.data)
            mode = 0o755 if file.executable else 0o644
            archive.getinfo(wire.FILES + file.path).external_attr = mode << 16


def _shipped(call: Call, spec: JobSpec) -> dict[str, bytes]:
    """Return the table of shipped files, and the contents that go into the payload."""
    rows, content = [], io.BytesIO()
    for file in call.shipped:
        at: int | str | None = None  # a big file of this machine stays where it is
        if file.data is not None:
            at = content.tell()
            content.write(file.data)
        elif spec.cluster.storage:
            at = stored(spec.cluster.storage, file.sha256)
        when = None if spec.remote else file.mtime
        rows.append([file.path, file.executable, file.size, file.sha256, when, at])
    return {wire.SHIPPED: json.dumps(rows).encode(), wire.CONTENT: content.getvalue()} if rows else {}


SHARED = "_shipped"  # in a store


def stored(storage: str, sha256: str) -> str:
    """Return the URL of a shipped file in a store: no job has that folder's name, and all jobs share it."""
    return f"{storage.rstrip('/')}/{SHARED}/{sha256}"


_MEMORY = "/dev/shm"


def _lab(call: Call, spec: JobSpec) -> dict[str, Any] | None:
    if not spec.lab:
        return None
    # What a pool's node has to know about its container's mounts (``runtime/pool/ground``)
    pod = spec.cluster.patch.get("spec") or {}
    own, others = list[dict[str, Any]](), list[dict[str, Any]]()  # mounts
    for container in (*(pod.get("containers") or ()), *(pod.get("initContainers") or ())):
        (others if container.get("name") else own).extend(container.get("volumeMounts") or ())
    alone = not any(container.get("name") for container in pod.get("containers") or ())
    volumes = {volume.get("name") for volume in pod.get("volumes") or () if "emptyDir" in volume}
    volumes -= {mount.get("name") for mount in others}
    empty = [mount["mountPath"] for mount in own if mount.get("name") in volumes]
    mounted = [mount["mountPath"] for mount in (*own, *others) if mount.get("name") not in volumes]
    ground = {
        "mounted": [*(mount.dst for mount in spec.cluster.mounts), *mounted],
        "empty": [*empty, *([_MEMORY] if spec.own_shared_memory and _MEMORY not in mounted else [])],
        "shared": bool(pod.get("hostIPC")) or not alone,
    }
    return {"idle": spec.idle_s, "fresh": spec.fresh, "ground": ground, **_turn(call)}


def _pooled(call: Call, spec: JobSpec, env: Mapping[str, str], sweep: str) -> dict[str, Any]:
    """Return what a pool's node reads about a job: its turn, its own variables, and its deadline."""
    policy = spec.launch.run_policy
    return {
        "pool": True,
        "turn": {**_turn(call), "sweep": sweep, "retry": json.dumps(spec.to_json().get("retry") or "")},
        "push": [],
        "env": {**spec.env, **spec.secrets(), **env},
        "deadline": policy.active_deadline_seconds if policy is not None else None,
    }


def _turn(call: Call) -> dict[str, str]:
    """Return what a lab's node reports about a turn."""
    return {name: getattr(call, name) for name in TURN}


def _archive(
    call: Call, spec: JobSpec, buffers: list[dict[str, Any]], key: bytes, env: Mapping[str, str], sweep: str
) -> bytes:
    remote = spec.remote
    # How often a failure is retried: by us, or by an operator with its backoff limit
    retry, policy = {"retries": 0, "retry_on": []}, spec.launch.run_policy
    if spec.retry is not None:
        retry = {"retries": spec.retry.retries, "retry_on": list(spec.retry.retry_on)}
    elif policy is not None:
        retry["retries"] = policy.backoff_limit or 0
    import cloudpickle  # late, as in ``program.modules``

    header = json.dumps(
        {
            "format": wire.FORMAT,
            "python": sys.version_info[:2],
            "torch": torch_versions.installed() or None,
            "cloudpickle": cloudpickle.__version__,
            "launch": _launch(spec),
            "lab": _lab(call, spec),
            **(_pooled(call, spec, env, sweep) if spec.pool else {}),
            "retry": retry,
            "all_ranks": spec.all_ranks,
            # Not taken from the environment: operators and images set it for everybody.
            "unbuffered": bool(spec.env.get("PYTHONUNBUFFERED")),
            "locals": not spec.no_locals,
            "autolog": not spec.no_autolog,
            "settings": settings.changed() if spec.carry_settings else {},
            "needs": _needs(call, spec) if remote else None,
            "images": len(spec.images),
            "strict": bool(spec.strict),
            "packages": _installs(call, spec, key),
            "ship": bool(call.shipped),
            "given": bool(call.parameters),
            "swaps": _may_use_ours(call, spec),  # its ranks may pass a point at which code is swapped
            "data": _data(call, spec),
            "debug": _debug(call, spec),
            "buffers": buffers,
        }
    ).encode()
    out = io.BytesIO(program.archive(remote=remote, parts=_parts(call, spec)))
    out.seek(0, io.SEEK_END)
    with zipfile.ZipFile(out, "a", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        _pack(archive, call, remote=remote)
        for wheel in call.packages.wheels:
            archive.writestr(packages.WHEELS + wheel.name, wheel.data, zipfile.ZIP_STORED)
        for name, data in _shipped(call, spec).items():
            archive.writestr(name, data, None if remote else zipfile.ZIP_STORED)
        archive.writestr(wire.HEADER, header)
    return out.getvalue()


def _installs(call: Call, spec: JobSpec, key: bytes) -> dict[str, Any] | None:
    """Return what ``runtime/install/packages`` reads: what is wanted, and where it is kept for the next job.

    On this machine that is a folder of the user's, elsewhere the job's store.
    """
    if not call.packages:
        return None
    stored_remotely = spec.remote and bool(spec.cluster.storage)
    # Where nodes fetch uv if their image lacks it, and its digest
    storage, own = spec.cluster.storage, call.packages.installer
    uv = None
    if storage and own is not None:
        url = stored(storage, own.sha256)
        uv = {"url": url, "sha256": own.sha256, "size": own.size, "machine": own.machine}
    return {
        **call.packages.header,
        "uv": uv,
        "kept": "" if spec.remote else str(folders.cache_dir() / "packages"),
        "stock": stock.hidden(folders.secret("packages"), key) if stored_remotely else "",
    }


def _parts(call: Call, spec: JobSpec) -> frozenset[str]:
    """Return which parts of the program the job needs (``program.PARTS``).

    For a pool's jobs that is still unknown, and they have the same program as their pool.
    """
    if spec.fresh or spec.pool:
        return frozenset(program.PARTS)
    uses_ours = _may_use_ours(call, spec)
    texts = (call.pickle, *(file.data for file in call.files))
    wants = {
        "environment": spec.remote or bool(call.packages),
        "packages": bool(call.packages),
        "stock": bool(call.packages) and bool(spec.cluster.storage),
        "nodes": spec.launch.max_nodes > 1,
        "mirror": "://" in (spec.cluster.checkpoints or ""),
        "trainer status": spec.remote and uses_ours,
        "training": uses_ours,
        "ship": call.shipped,
        "process": call.lays or spec.lab,
        "settings": spec.carry_settings and settings.changed(),
        "swaps": uses_ours,
        "lab": spec.lab,
        "pool": spec.fresh,
        # It is loaded with cloudpickle, or may use it itself.
        "values": not call.plain
        or call.parameters
        or uses_ours
        or call.shipped
        or any(b"cloudpickle" in text for text in texts),
        # Another Python generates some methods of any class itself.
        "generated": b"make_class" in call.pickle or b"runtime.objects.generated" in call.pickle,
        "threads": b"runtime.objects.threads" in call.pickle,
        "debugger": _debug(call, spec),
        "data": spec.data,
    }
    return frozenset(part for part, condition in wants.items() if condition)


def _may_use_ours(call: Call, spec: JobSpec) -> bool:
    """Whether ranks may use our names: modules that they import may, except Python's own and torch.

    What a lab will run, or what a call imports from a file or by a name found on the rank, is unknown here.
    """
    names = call.imports.all
    tops = {name.partition(".")[0] for name in names}
    if spec.lab or not _OURS.isdisjoint(names) or not tops <= _SILENT:
        return True
    return any(word in call.pickle for word in _RUNS_OTHER_CODE)


def _needs(call: Call, spec: JobSpec) -> list[dict[str, str]]:
    """Return what a node must have before its ranks start: what the call is sure to import, or all of it.

    torch isn't among it: a node reports more about that.
    """
    return [
        {"module": need.module, "distribution": need.distribution, "version": need.version, "mend": need.mend}
        for need in call.needs
        if (need.surely or spec.strict) and need.distribution != "torch"
    ]


def _data(call: Call, spec: JobSpec) -> dict[str, Any] | None:
    """Return what ``runtime/data/provide`` reads: where each piece of data is, and where it is kept."""
    if not spec.data:
        return None
    from nbtorchjob.capture import shipped  # late: few jobs have any

    listed = {folder.name: folder.listed for folder in call.data}
    entries = []
    for name, text in spec.data.items():
        place = config.where(text)
        entry: dict[str, Any] = {"name": name, "where": text}
        if name in listed:
            file = listed[name]
            url = stored(spec.cluster.storage or "", file.sha256)
            entry["list"] = {"url": url, "sha256": file.sha256, "size": file.size}
        elif place.scheme == "pvc":
            entry["path"] = place.mounted(name)
        elif not place.scheme:
            entry["path"] = str(shipped.data_path(text, folders.working()))
        entries.append(entry)
    cache, where = data_cache(spec)
    return {"entries": entries, "cache": cache, "place": where}


def data_cache(spec: JobSpec) -> tuple[str, str]:
    """Return the folder in which nodes keep data that they fetch, and a description of it.

    "" is the node's own folder, which goes with its pod.
    """
    if not spec.remote:
        return str(folders.cache_dir() / "data"), "this machine's cache"
    path = spec.cluster.data_cache or ""
    mount = spec.cluster.mount_of(path) if path else None
    if mount is None:
        return "", "the pod's own disk"
    return path, f"the claim {mount.src}" if mount.type == "volume" else f"{mount.src} of its host"


def _debug(call: Call, spec: JobSpec) -> dict[str, Any] | None:
    """Return how ranks stop in the debugger; None if they don't, as far as the code shows.

    What an image's own packages do isn't visible: an explicit wait means that they may stop. What a lab will
    run is unknown: its ranks can stop, but are ``patient`` only on the same conditions. Unless it is put off,
    a collective's time-out is an exception like others, which a lab's ranks outlive.
    """
    stops = call.stops or bool(spec.hold) or spec.debug_wait not in (0, JobSpec.debug_wait)
    if not stops and not spec.lab:
        return None
    patient = stops and bool(spec.debug_wait or spec.hold)
    return {"wait": spec.debug_wait, "hold": bool(spec.hold), "patient": patient}


def _launch(spec: JobSpec) -> dict[str, Any]:
    launch = spec.launch
    return {
        "nnodes": f"{launch.min_nodes}:{launch.max_nodes}",
        "nproc_per_node": launch.nproc_per_node,
        "max_restarts": launch.max_restarts,
        "start_method": getattr(launch, "start_method", "spawn"),
        "monitor_interval": getattr(launch, "monitor_interval", 5),
        "hang_after": spec.hang_after,
        "rdzv_configs": dict(getattr(launch, "rdzv_configs", {})),
    }
