"""Checkpoints in a folder: only a complete one is loaded, whenever a save breaks off, and old ones go."""

import itertools
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from typing import NamedTuple

import cloudpickle
import pytest
import torch
from torch.distributed import fsdp

from nbtorchjob import Elastic, JobSpec, submit
from nbtorchjob.runtime.api import dcp
from nbtorchjob.runtime.api.dcp import Checkpoints, is_whole
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

sharded = pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="needs torch 2.6")
fork = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def filters():
    """Restore the warning filters: ``Checkpoints`` ignores DCP's warning of a missing process group."""
    with warnings.catch_warnings():
        yield


def state_of(step):
    # Beside tensors, values like those of schedulers and samplers.
    return {"model": {"w": torch.full((50,), float(step))}, "lr": {"last": [0.5, step], "seen": step}}


def saved(folder, *steps, keep=2):
    """Save these steps in turn; return the checkpoints."""
    checkpoints = Checkpoints(str(folder), keep, None)
    checkpoints.newest()
    for step in steps:
        checkpoints.save(step, state_of(step))
    checkpoints.finish()
    return checkpoints


def loaded(folder, keep=2):
    """Return the step of the newest checkpoint; check that all of its state is of that step."""
    checkpoints = Checkpoints(str(folder), keep, None)
    path = checkpoints.newest()
    if path is None:
        return None
    state = state_of(0)
    checkpoints.load(path, state)
    step = state["lr"]["seen"]
    assert torch.equal(state["model"]["w"], state_of(step)["model"]["w"])
    assert state["lr"] == state_of(step)["lr"]
    assert checkpoints.newest_step == step
    return step


def steps_in(folder):
    return sorted(int(name.split("-")[1]) for name in os.listdir(folder))


def test_the_newest_ones_stay(folder):
    saved(folder, 1, 2, 3)
    assert steps_in(folder) == [2, 3]
    assert loaded(folder) == 3

    saved(folder, 4, keep=1)
    assert steps_in(folder) == [4]


def test_a_training_does_not_wait_for_what_is_removed(folder, monkeypatch):
    removers = []

    def remove(path, **options):
        removers.append(threading.current_thread())
        rmtree(path, **options)

    rmtree = shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", remove)
    saved(folder, 1, 2, 3, 4)
    assert len(os.listdir(folder)) == 2
    assert len(removers) == 2
    assert threading.main_thread() not in removers


def test_a_folder_without_checkpoints_has_none(folder):
    assert loaded(folder) is None
    assert loaded(folder / "absent") is None


def test_a_rank_that_is_ahead_has_begun_the_next_one_which_stays(folder):
    checkpoints = saved(folder, 1)
    (first,) = folder.iterdir()
    ahead = folder / first.name.replace("01-", "03-")
    ahead.mkdir()
    (folder / "step-000000002-00000000").mkdir()  # cut off, by earlier ranks
    checkpoints.save(2, state_of(2))
    checkpoints.finish()
    assert steps_in(folder) == [1, 2, 3]

    assert loaded(folder) == 2
    assert steps_in(folder) == [1, 2]


def test_a_state_may_change_as_soon_as_save_returns(folder):
    checkpoints = Checkpoints(str(folder), 2, None)
    state = state_of(1)
    checkpoints.save(1, state)
    state["model"]["w"].fill_(7)
    checkpoints.finish()

    assert loaded(folder) == 1


class Pair(NamedTuple):
    first: int
    second: torch.Tensor


@sharded
def test_what_is_made_like_a_shard_is_one_and_takes_its_values():
    def copied():
        import torch
        from torch.distributed.fsdp import fully_shard

        torch.distributed.init_process_group("gloo")
        layer = fully_shard(torch.nn.Linear(3, 2))
        weight = layer.weight.detach()
        # Like the copy of a GPU's shard, which also asks for page-locked memory.
        copy = torch.empty_like(weight, device="cpu")
        copy.copy_(weight, non_blocking=True)
        return type(copy) is type(weight), torch.equal(copy.to_local(), weight.to_local())

    assert submit(copied).result(LIMIT) == (True, True)


def test_equal_states_on_different_gpus_have_the_same_bytes(monkeypatch):
    tag = torch.serialization.location_tag
    first, second = {"w": [torch.ones(3)]}, {"w": [torch.ones(3)]}
    places = {state["w"][0].data_ptr(): f"cuda:{gpu}" for gpu, state in enumerate((first, second))}
    monkeypatch.setattr(
        torch.serialization, "location_tag", lambda storage: places.get(storage.data_ptr()) or tag(storage)
    )

    assert dcp._bytes(first) == dcp._bytes(second)


def test_a_state_may_have_tuples_with_names(folder):
    checkpoints = Checkpoints(str(folder), 2, None)
    checkpoints.save(1, {"pair": Pair(1, torch.ones(2))})
    checkpoints.finish()

    state = {"pair": None}
    path = Checkpoints(str(folder), 2, None).newest()
    checkpoints.load(str(path), state)
    assert repr(state["pair"]) == repr(Pair(1, torch.ones(2)))


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_one_that_was_cut_off_is_not_taken_and_goes(folder, name):
    saved(folder, 1, 2)
    first, second = sorted(folder.iterdir())
    size = (second / name).stat().st_size
    assert is_whole(str(second))

    for left in (size - 1, size // 2, 0):
        os.truncate(second / name, left)
        assert not is_whole(str(second))
    (second / name).unlink()
    assert not is_whole(str(second))
    assert loaded(folder) == 1
    assert [*folder.iterdir()] == [first]


def killed_at(number, folder):
    """Save step 2 in place of step 1; kill this process before the ``number``th operation on a file there."""
    counted = itertools.count(1)

    def look(event, arguments):
        of_files = event.startswith(("open", "os.", "shutil.")) and arguments
        if of_files and str(folder) in str(arguments[0]) and next(counted) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoints = Checkpoints(str(folder), 1, None)
    checkpoints.newest()
    sys.addaudithook(look)
    checkpoints.save(2, state_of(2))
    checkpoints.finish()


def test_a_process_that_is_killed_at_any_moment_leaves_a_whole_one(folder):
    origin = folder / "origin"
    saved(origin, 1)
    steps = []
    for number in itertools.count(1):
        copy = folder / str(number)
        shutil.copytree(origin, copy)
        process = fork.Process(target=killed_at, args=(number, copy))
        process.start()
        process.join()
        steps.append(loaded(copy, keep=1))
        assert steps_in(copy) == [steps[-1]]
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL

    # At first the old checkpoint counts, then the new one.
    assert steps == sorted(steps)
    assert steps[0] == 1
    assert steps[-1] == 2
    assert len(steps) > 8


@pytest.fixture
def tiny_disk(folder):
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", folder], check=False)
    if done.returncode:
        pytest.skip("mounting a small file system takes root")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_reported_and_costs_no_other_checkpoint(tiny_disk):
    checkpoints = saved(tiny_disk, 1)
    big = {"model": {"w": torch.zeros(100_000)}}
    checkpoints.save(2, big)
    message = r"step 2 wasn't saved, the newest one is of step 1 \(0\.0 GB of disk are free\): "
    with pytest.warns(RuntimeWarning, match=message):
        checkpoints.finish()
    assert steps_in(tiny_disk) == [1]

    checkpoints.save(3, state_of(3))
    checkpoints.finish()
    assert loaded(tiny_disk) == 3


def send_in_turn(folder):
    """Run as a rank on its own node, which sends at other times than the other node.

    Return the steps that were complete in the store after each save, and the steps that remain here.
    """
    from torch import distributed

    from nbtorchjob import checkpoint_dir
    from nbtorchjob.runtime.api.dcp import Checkpoints
    from nbtorchjob.runtime.api.mirror import Mirror

    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    url, store = f"file://{folder}/store", f"{folder}/store/training"
    os.environ.update(NBTORCHJOB_CHECKPOINTS=url, NBTORCHJOB_FOLDER=f"{folder}/{rank}", LOCAL_RANK="0")
    training = str(checkpoint_dir() / "training")
    mirror = Mirror(url, str(checkpoint_dir()))
    checkpoints = Checkpoints(training, 1, distributed.new_group(backend="gloo"))
    checkpoints.newest()
    whole = []
    for step in range(1, 25):
        checkpoints.save(step, state_of(step))
        checkpoints.finish()
        distributed.barrier()
        if step % 4 == 2 * rank:
            mirror.send()
        distributed.barrier()
        names = os.listdir(store) if os.path.isdir(store) else []
        whole.append({int(name.split("-")[1]) for name in names if is_whole(os.path.join(store, name))})
        distributed.barrier()
    mirror.send(ended=True)
    return whole, steps_in(training)


def test_nodes_that_send_at_other_times_have_one_whole_in_the_store(folder):
    (folder / "store").mkdir()
    job = submit(send_in_turn, str(folder), spec=JobSpec(Elastic(nproc_per_node=2), all_ranks=True))
    (whole, local_steps), _ = job.results(LIMIT)
    assert all(whole[6:]), whole
    assert max(whole[-1]) > 12
    assert all(len(steps) <= 4 for steps in whole)
    assert local_steps[-1] == 24
    assert len(local_steps) <= 3
    assert loaded(folder / "store" / "training", keep=1) == 24


def test_checkpoints_none_of_which_is_whole_are_reported_and_stay_until_a_new_one_is(folder):
    saved(folder, 1, 2)
    for path in folder.iterdir():
        (path / ".metadata").unlink()
    checkpoints = Checkpoints(str(folder), 2, None)
    with pytest.warns(
        RuntimeWarning, match="begins at step 0: none of the 2 checkpoints in .* is complete on"
    ):
        newest = checkpoints.newest()
    assert newest is None
    assert steps_in(folder) == [1, 2]
    checkpoints.save(1, state_of(1))
    checkpoints.finish()
    assert steps_in(folder) == [1]


def agree(folder):
    """Run as a rank with a folder of its own, as with a store; return its newest checkpoint and its steps."""
    from torch import distributed

    from nbtorchjob.runtime.api.dcp import Checkpoints

    distributed.init_process_group("gloo")
    own = f"{folder}/{distributed.get_rank()}"
    checkpoints = Checkpoints(own, 2, distributed.new_group(backend="gloo"))
    return os.path.basename(checkpoints.newest() or ""), steps_in(own)


def test_ranks_agree_on_one_that_all_have(folder):
    saved(folder / "0", 1, 2)
    shutil.copytree(folder / "0", folder / "1")
    first, second = sorted((folder / "1").iterdir())
    (second / ".metadata").unlink()
    job = submit(agree, str(folder), spec=JobSpec(Elastic(nproc_per_node=2), all_ranks=True))

    assert [newest for newest, _ in job.results(LIMIT)] == [first.name] * 2
    assert steps_in(folder / "0") == [1]


def test_a_state_that_does_not_fit_is_named(folder):
    saved(folder, 1)
    checkpoints = Checkpoints(str(folder), 2, None)
    path = checkpoints.newest()
    assert path
    with pytest.raises(
        RuntimeError, match=r"step-000000001-\w+ doesn't fit this training: .*Missing key.*oth"
    ):
        checkpoints.load(path, {"other": {"w": torch.zeros(2)}})
