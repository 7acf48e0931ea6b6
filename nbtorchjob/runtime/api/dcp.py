"""Checkpoints in a folder, written by torch's DCP: all ranks save parts of one state while they train.

Each checkpoint is a folder of its own, ``step-N-LIFE``, or ``step-N.1-LIFE`` if there is one of that step
already. Ranks draw ``LIFE`` when they begin, so no two lives of a job write to one folder. DCP writes
``.metadata`` last, once all ranks have written their parts, and records in it which bytes of which file
belong to the state. So a checkpoint is *whole* if it has ``.metadata`` and its files are as long as that
says. This also holds for a folder whose files came from a store one by one. All ranks agree on the newest
checkpoint that is whole for each of them.

If each node sends its files to a store (``mirror.py``), files removed here are removed there. A node that
sends more slowly than its ranks save would never send a whole checkpoint, and nodes would send different
ones. So ranks agree on one checkpoint to send, which all nodes keep until all have sent it, and on the
newest one that all have sent, which they keep until then.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import shutil
import threading
import time
import uuid
import warnings
from typing import Any, Dict, List, Mapping, Optional, Set, Tuple

import torch
from torch import distributed

from nbtorchjob.runtime import torch_versions
from nbtorchjob.runtime.api import checkpoints
from nbtorchjob.runtime.api.report import ROUND
from nbtorchjob.runtime.facts import EVENTS, emit

_NAME = re.compile(r"step-(\d{9,})(?:\.\d+)?-[0-9a-f]{8}")
_METADATA = ".metadata"
_NONE: Dict[str, Any] = {}
_Locked = Dict[Tuple[Any, ...], Any]  # tensors by the keys that lead to them
_ALL = b"all"
_PAUSE_S = 0.01
_folders: Set[Tuple[str, str]] = set()  # of this process's checkpoints, each with the round
_ALONE = r"torch\.distributed is (disabled|unavailable)"  # DCP's warning if there is no process group


class Checkpoints:
    """The checkpoints in ``folder``: the newest ``keep`` stay, and one more exists while it is written.

    With a store, the newest one that all nodes have sent stays as well, and the one that they are sending.

    All ranks create it together, and call :meth:`newest`, :meth:`load` and :meth:`save` together. ``group``
    has a backend for CPUs, as a thread of each rank meets the others in it; it is None for a single
    process.
    """

    def __init__(self, folder: str, keep: int, group: Any) -> None:
        os.makedirs(folder, exist_ok=True)  # if that is impossible, fail before hours of work
        self._folder = folder
        self._keep = keep
        self._group = group
        # With a store each node has its own copies: one rank of each node removes them.
        self._removes = int(os.environ.get("LOCAL_RANK") or 0) == 0
        self._life: str = self._gathered(uuid.uuid4().hex[:8])[0]
        self._whole: List[str] = []  # in the order of their steps
        self._locked: _Locked = {}
        self._in_store = checkpoints.in_store(folder)
        self._sent: Optional[str] = None  # the newest that all nodes have sent
        self._sending: Optional[str] = None
        self._pending: Optional[Tuple[str, Any]] = None
        self._removal: Optional[threading.Thread] = None
        self._meetings = 0
        if group is None:
            warnings.filterwarnings("ignore", message=_ALONE)

    @property
    def newest_step(self) -> Optional[int]:
        """The step of the newest checkpoint that was found or saved, or that is being saved."""
        names = [*self._whole, *([self._pending[0]] if self._pending else [])]
        return _step(names[-1]) if names else None

    def newest(self) -> Optional[str]:
        """Return the path of the newest checkpoint that is whole on all ranks; remove what it replaces.

        If there are some, but none is whole, that is reported, and all stay until a new one is whole.
        """
        round_, place = os.environ.get(ROUND, ""), os.path.realpath(self._folder)
        begins = not round_ or (round_, place) not in _folders  # in a notebook, a cell may just run again
        _folders.add((round_, place))
        names = self._names()
        gathered = self._gathered(
            (names, {name for name in names if is_whole(os.path.join(self._folder, name))})
        )
        self._whole = sorted(set.intersection(*(whole for _, whole in gathered)))
        if self._whole:
            self._choose_to_send()
            self._remove_others("")
            self.finish()
            # Folds of a cross-validation with one folder would each take the first one's end for their own.
            if not begins and self._is_first:
                text = "this training goes on at step %d of %s, which another training of this job saved: "
                self._report((text + "give each its own folder=") % (self.newest_step, self._folder))
            return os.path.join(self._folder, self._whole[-1])
        cut_off = {name for some, _ in gathered for name in some}
        if cut_off and self._is_first:
            text = "training begins at step 0: none of the %d checkpoints in %s is complete on all ranks"
            self._report(text % (len(cut_off), self._folder))
        return None

    def load(self, path: str, state: Dict[str, Any]) -> None:
        """Load a checkpoint into ``state``, in place.

        Raises ``RuntimeError`` if it doesn't fit, also if no rank's state has a place for a part of its model
        or optimizers: DCP would leave that part out silently. A module's extra state that the checkpoint
        lacks stays as it is: the code may have been swapped since.
        """
        import torch.distributed.checkpoint as dcp  # late: it imports sympy, a second of a pool's start

        saved = dcp.FileSystemReader(path).read_metadata().planner_data or {}
        without = {name for name, keys in saved.items() if _lacks(state, keys)}
        left_out = sorted(set.intersection(*self._gathered(without)))
        if left_out:
            message = (
                "the checkpoint %s doesn't fit this training, which has no %s: create what was saved ahead "
                "of ResumableTraining, or pass another folder="
            )
            more = " and %d more" % (len(left_out) - 3) if len(left_out) > 3 else ""
            raise RuntimeError(message % (os.path.basename(path), ", ".join(left_out[:3]) + more))
        model = state.get("model", {})
        saved_names = {key for keys in saved.values() if keys[0] == "model" for key in keys[1:2]}
        new = {name for name in model if name.endswith("_extra_state")} - saved_names
        aside = {name: model.pop(name) for name in sorted(new)}
        try:
            dcp.load(state, checkpoint_id=path, process_group=self._group)
            model.update(aside)
        except dcp.CheckpointException as exc:  # not an ``Exception``, and with a traceback for each rank
            message = "the checkpoint %s doesn't fit this training: %.300s"
            raise RuntimeError(message % (os.path.basename(path), _reason(exc))) from exc

    def has(self, path: str, entry: str) -> bool:
        """Whether a checkpoint's state has that entry, by its path."""
        import torch.distributed.checkpoint as dcp  # late, as above

        return entry in dcp.FileSystemReader(path).read_metadata().state_dict_metadata

    def meet(self, step: int, within: float) -> bool:
        """Wait up to ``within`` seconds for all ranks to be about to save this step; return whether they are.

        A rank that raises may be the only one here, and a save without the others would never end. The first
        rank to give up decides for all, including those that come later, and reports it.
        """
        default_store = torch_versions.DEFAULT_STORE.get()
        if self._group is None or default_store is None:
            return True
        self._meetings += 1
        prefix = "nbtorchjob/saves/%s/%d" % (self._life, self._meetings)
        store = distributed.PrefixStore(prefix, default_store())
        until, giving_up = time.monotonic() + within, b"rank %d" % distributed.get_rank()
        same = store.compare_set("step", "", str(step)) == b"%d" % step
        if same and store.add("ranks", 1) == distributed.get_world_size(self._group):
            store.compare_set("decision", "", _ALL.decode())
        # Not ``wait``, during which no other thread of this process can use the store.
        while same and time.monotonic() < until and not store.check(["decision"]):
            time.sleep(_PAUSE_S)
        decision = store.compare_set("decision", "", giving_up.decode())
        if decision == giving_up:
            text = (
                "the checkpoint of step %d wasn't saved: rank %d was ready to save, but not all others were"
            )
            self._report(text % (step, distributed.get_rank()))
        return bool(decision == _ALL)

    def save(self, step: int, state: Dict[str, Any], others: Mapping[str, Any] = _NONE) -> None:
        """Begin to save ``state``, once the previous save has ended; return once ``state`` may change.

        ``others`` are states by name, saved whole, whatever they contain, and for each rank if they differ.
        """
        import torch.distributed.checkpoint as dcp  # late, as above

        self.finish()  # else its thread and this one would mix up their collectives in one group
        self._choose_to_send()
        if others:
            # A state with sharded tensors stays as it is: DCP loads it with any number of ranks.
            packed = {name: state if is_sharded(state) else _bytes(state) for name, state in others.items()}
            own = {name: value for name, value in packed.items() if isinstance(value, bytes)}
            digests = self._gathered({name: hashlib.sha256(value).digest() for name, value in own.items()})
            if any(other.keys() != own.keys() for other in digests):
                raise ValueError(
                    "ranks have different others=: %s" % sorted({key for d in digests for key in d})
                )
            differ = [name for name in own if any(other[name] != digests[0][name] for other in digests)]
            ranks = self._gathered({name: own[name] for name in differ}) if differ else []
            lists = {name: [rank[name] for rank in ranks] if name in differ else [own[name]] for name in own}
            state = {**state, "others": {**packed, **lists}}
        again = sum(_step(name) == step and name.endswith(self._life) for name in self._whole)
        name = "step-%09d%s-%s" % (step, ".%d" % again if again else "", self._life)
        path = os.path.join(self._folder, name)
        copy, self._locked = _copied(state, self._locked)
        writer: Any = dcp.FileSystemWriter(path)
        writer.stage = lambda staged: staged  # by default, DCP would copy the copies, too
        saving: Any = dcp.async_save(
            copy, checkpoint_id=path, storage_writer=writer, process_group=self._group
        )
        self._pending = (name, saving)

    def finish(self, *, wait: bool = True) -> None:
        """Record how the save under way has ended; without ``wait``, return if it hasn't ended yet.

        A save that fails, for instance on a full disk, is reported and costs no other checkpoint. With
        ``wait``, the checkpoints that it replaces are removed when this returns.
        """
        if self._pending is not None and (wait or self._pending[1].done()):
            (name, saving), self._pending = self._pending, None
            failure = saving.exception()
            if failure is None:
                self._whole.append(name)
            elif self._is_first:
                newest = "there is none yet"
                if self.newest_step is not None:
                    newest = "the newest one is of step %d" % self.newest_step
                # torch.save has its own words for a full disk
                free = shutil.disk_usage(self._folder).free / 1e9
                text = "the checkpoint of step %d wasn't saved, %s (%.1f GB of disk are free): %.300s"
                self._report(text % (_step(name), newest, free, _reason(failure)))
            self._remove_others(name)
        if wait and self._removal is not None:
            self._removal.join()

    def blank(self, others: Mapping[str, Any]) -> Dict[str, Any]:
        """Return values for :meth:`load` to load the states of others into, for :meth:`unpacked`."""
        states = {name: other.state_dict() for name, other in others.items()}
        return {name: state if is_sharded(state) else [] for name, state in states.items()}

    def unpacked(self, name: str, value: Any) -> Any:
        """Return this rank's state of one of the others; ``RuntimeError`` for another number of ranks."""
        if not isinstance(value, list):
            return value
        ranks = 1 if self._group is None else distributed.get_world_size(self._group)
        if len(value) not in (1, ranks):
            raise RuntimeError(
                "others[%r] was saved with a different state on each of %d ranks, but this job has %d: go "
                "on with %d, or give it a state that is the same on all ranks"
                % (name, len(value), ranks, len(value))
            )
        own = value[0] if len(value) == 1 else value[distributed.get_rank(self._group)]
        # As DCP loads values that aren't tensors: anybody who can write to the folder can run code here.
        return torch.load(io.BytesIO(own), map_location="cpu", weights_only=False)

    @property
    def _is_first(self) -> bool:
        return self._group is None or distributed.get_rank() == 0

    def _report(self, text: str) -> None:
        if os.environ.get(EVENTS):
            emit("Notice", text=text)
        else:
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _choose_to_send(self) -> None:
        """Agree on the newest checkpoint that all nodes have sent, and on the next one to send."""
        if not self._in_store or not self._whole:
            return
        unsent = {path.split(os.sep)[0] for path in checkpoints.unsent(self._folder)}
        sent = set.intersection(*self._gathered(set(self._whole) - unsent))
        self._sent = max(sent, default=self._sent)
        if self._sending is None or self._sending in sent:
            self._sending = self._whole[-1]

    def _remove_others(self, ended: str) -> None:
        """Remove all but the newest whole checkpoints: older ones, and those that were cut off.

        Of this life's, only those up to the one that has ``ended``: other ranks may have begun the next one.
        A thread removes the files: 300 MB took 90 ms, during which a GPU would be idle.
        """
        kept = {*self._whole[-self._keep :], self._sent, self._sending}
        self._whole = [name for name in self._whole if name in kept]
        others = [name for name in self._names() if name not in self._whole] if self._removes else []
        paths = [
            os.path.join(self._folder, name)
            for name in others
            if name <= ended or not name.endswith(self._life)
        ]
        for path in paths:
            # First the file that makes it whole, as this process may be killed meanwhile.
            with contextlib.suppress(OSError):
                os.remove(os.path.join(path, _METADATA))
        if paths:
            self._removal = threading.Thread(target=_remove, args=(paths,), name="nbtorchjob-remove")
            self._removal.start()

    def _names(self) -> List[str]:
        return sorted(name for name in os.listdir(self._folder) if _NAME.fullmatch(name))

    def _gathered(self, value: Any) -> List[Any]:
        """Return each rank's value."""
        if self._group is None:
            return [value]
        values: List[Any] = [None] * distributed.get_world_size(self._group)
        distributed.all_gather_object(values, value, group=self._group)
        return values


def is_whole(path: str) -> bool:
    """Whether the checkpoint in this folder was written completely, and its files have all their bytes."""
    import torch.distributed.checkpoint as dcp  # late, as above

    try:
        parts = dcp.FileSystemReader(path).read_metadata().storage_data.values()
        lengths: Dict[str, int] = {}
        for part in parts:
            lengths[part.relative_path] = max(lengths.get(part.relative_path, 0), part.offset + part.length)
        return all(os.path.getsize(os.path.join(path, name)) >= size for name, size in lengths.items())
    except Exception:  # whatever is wrong with it, another one is better
        return False


def _lacks(state: Any, keys: Tuple[Any, ...]) -> bool:
    """Whether a state has no place for what these keys lead to, a part of the model or of an optimizer.

    A module's extra state may have other keys in each step, and an optimizer's groups have other options in
    each version of torch. Its options, such as momentum, may be set later: they determine what it keeps.
    """
    if keys[0] not in state or any(str(key).endswith("_extra_state") for key in keys):
        return False
    if keys[:2] == ("optimizer", "state"):
        return all(keys[2] not in group["params"] for group in state["optimizer"]["param_groups"])
    if keys[0] != "model" and (keys[0] != "optimizer" or keys[-1] != "params"):
        return False
    for key in keys:
        try:
            state = state[key]
        except (KeyError, IndexError, TypeError):
            return True
    return False


def _remove(paths: List[str]) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)  # another node that shares the folder does the same


def _step(name: str) -> int:
    match = _NAME.fullmatch(name)
    assert match
    return int(match[1])


def _copied(state: Any, locked: _Locked) -> Tuple[Any, _Locked]:
    """Return a state with its tensors copied to the host's memory, and copies from GPUs by their places.

    The latter are in page-locked memory, which a GPU fills ten times as fast as other memory. Locking memory
    takes long, so that of the earlier copies in ``locked`` is filled anew. Of a sharded tensor, only this
    rank's shard is copied.
    """
    now: _Locked = {}
    devices = set()

    def copied(value: Any, place: Tuple[Any, ...]) -> Any:
        if isinstance(value, torch.Tensor):
            source, where = value.detach(), value.device.type
            if where == "cpu":
                return source.clone()
            own: Any = source.to_local() if is_sharded(source) else source
            if where != "cuda" or type(own) is not torch.Tensor or own.layout != torch.strided:
                return source.to("cpu")
            copy = locked.get(place)
            if copy is None or (copy.shape, copy.dtype) != (source.shape, source.dtype):
                copy = torch.empty_like(source, device="cpu", pin_memory=True)
            now[place] = copy.copy_(source, non_blocking=True)
            devices.add(source.device)
            return copy
        if isinstance(value, dict):
            return {key: copied(inner, (*place, key)) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            copies = [copied(inner, (*place, index)) for index, inner in enumerate(value)]
            return type(value)(*copies) if hasattr(value, "_fields") else type(value)(copies)
        return value

    copy = copied(state, ())
    for device in devices:  # each has its own stream of copies
        torch.cuda.synchronize(device)
    return copy, now


def is_sharded(state: Any) -> bool:
    """Whether a state contains a tensor of which each rank has a part."""
    if isinstance(state, Mapping):
        return any(is_sharded(inner) for inner in state.values())
    if isinstance(state, (list, tuple)):
        return any(is_sharded(inner) for inner in state)
    return hasattr(state, "device_mesh")  # DTensor, which isn't public in the oldest torch


def _bytes(state: Any) -> bytes:
    """Return a state as bytes, which are the same for equal states on different GPUs.

    ``torch.save`` writes each tensor's device, so the state is first loaded into the host's memory.
    """
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    on_host = torch.load(file, map_location="cpu", weights_only=False)
    file = io.BytesIO()
    torch.save(on_host, file)
    return file.getvalue()


def _reason(failure: BaseException) -> str:
    """Return the first failed rank's own exception in a line; DCP's contains a traceback for each rank."""
    failures: Any = getattr(failure, "failures", {})
    for rank in sorted(failures)[:1]:
        failure = failures[rank][0]
        return "rank %d: %s: %s" % (rank, type(failure).__name__, failure)
    return "%s: %s" % (type(failure).__name__, failure)
