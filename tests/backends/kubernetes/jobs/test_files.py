"""Files of a running cluster job: listed and copied through its pods."""

import os

from nbtorchjob import Elastic
from nbtorchjob.backends import backend, files, links
from nbtorchjob.errors import AskError
from tests.backends.kubernetes.stage import until

# A node with files that its ranks have written.
PART = """
import os, tempfile
from nbtorchjob.runtime.ask import answering, questions
from nbtorchjob.runtime.facts import injected

folder = tempfile.mkdtemp(prefix="nbtorchjob-")
os.environ[injected.FOLDER] = folder
os.makedirs(folder + "/artifacts-1/runs")
with open(folder + "/artifacts-1/runs/big", "wb") as file:
    file.write(bytes(range(256)) * 20_000)
with open(folder + "/artifacts-1/node-%d" % NODE, "w") as file:
    file.write("é")
def answer(asked):
    from nbtorchjob.runtime.ask import files  # its payload lacks it: it comes with the question
    return files.answer(asked)
answering.serve(folder, questions.node_key(KEY, injected.run(), NODE), {"files": answer})
begin()
sign(f"ready-{NODE}")
wait("go")
value(1)
"""

# Growing files, like those of TensorBoard's writer and of an offline run of wandb.
GROWING = PART.replace(
    'sign(f"ready-{NODE}")',
    """
from pathlib import Path
runs = [Path(folder, "artifacts-1", name) for name in
        ("runs/events.out.tfevents.1", "wandb/offline-run-1/run-1.wandb")]
for number, run in enumerate(runs):
    run.parent.mkdir(parents=True, exist_ok=True)
    run.write_bytes(bytes([number]) * 100_000)
sign(f"ready-{NODE}")
wait("grow")
for number, run in enumerate(runs):
    with open(run, "ab") as file:
        file.write(bytes([number + 10]) * 50_000)
""",
)


def test_files_of_pods_are_listed_and_copied_over_a_cut_connection(stage, tmp_path, monkeypatch):
    job = stage.submit(PART, launch=Elastic(nnodes=2))
    until(lambda: all((stage.signs / f"ready-{node}").exists() for node in (0, 1)))
    kubernetes = backend("kubernetes")
    state = kubernetes.snapshot(job.name)

    listing = files.listed(kubernetes, state)
    assert [(file.path, file.size, file.node) for file in listing.files] == [
        ("artifacts/node-0", 2, 0),
        ("artifacts/node-1", 2, 1),
        ("artifacts/runs/big", 5_120_000, 0),
        ("artifacts/runs/big", 5_120_000, 1),
    ]

    read, cuts = files.Reader.read, [3]

    def cut(self, *args):
        for number, part in enumerate(read(self, *args)):
            if cuts and number == cuts[0]:
                cuts.clear()
                raise AskError("the connection to it was cut")
            yield part

    monkeypatch.setattr(files.Reader, "read", cut)
    (copied,) = files.fetch(kubernetes, state, "artifacts/runs/big", tmp_path / "home", node=1)
    assert copied.path.read_bytes() == bytes(range(256)) * 20_000
    assert (copied.growing, cuts, os.listdir(tmp_path / "home")) == (False, [], ["big"])


def test_a_sync_says_that_the_last_checkpoints_of_an_ended_job_may_be_missing(stage, tmp_path):
    job = stage.submit("begin(); value(1)")
    assert job.wait(60)
    checkpoints, everything = job.sync(tmp_path / "some", "checkpoints"), job.sync(tmp_path / "all")

    assert checkpoints.wait(60)
    assert everything.wait(60)
    assert checkpoints.trouble.startswith("the last checkpoints may be missing: ")
    assert everything.trouble == ""  # no checkpoints were seen


def test_tensorboard_and_an_offline_run_of_wandb_are_synced_as_they_grow(stage, tmp_path, monkeypatch):
    monkeypatch.setattr(links, "EVERY_S", 0.1)
    job = stage.submit(GROWING)
    until((stage.signs / "ready-0").exists)
    events = tmp_path / "home/runs/events.out.tfevents.1"
    offline = tmp_path / "home/wandb/offline-run-1/run-1.wandb"

    going = job.sync(tmp_path / "home", "artifacts")
    until(lambda: offline.exists() and events.exists())
    until(lambda: (events.stat().st_size, offline.stat().st_size) == (100_000, 100_000))
    before = going.copied
    stage.sign("grow")
    until(lambda: (events.stat().st_size, offline.stat().st_size) == (150_000, 150_000))

    assert events.read_bytes() == bytes(100_000) + bytes([10]) * 50_000
    assert offline.read_bytes() == bytes([1]) * 100_000 + bytes([11]) * 50_000
    assert going.copied - before == 100_000  # only the new bytes
    stage.sign("go")
    assert job.wait(60)
    assert going.wait(60)
