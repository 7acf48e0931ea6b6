"""The cells of docs/frameworks.md: each trains on two ranks, and reports what it logs."""

import importlib.util
import os
import re
import signal
import sys
from pathlib import Path

import cloudpickle
import pytest

from nbtorchjob import Elastic, capture, submission, submit
from tests.backends.local.real import folder_of, seen
from tests.patience import LIMIT

# Pickle by value, as in a notebook: no node can import these functions.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

PAGE = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
NAMES = ("torch", "transformers", "lightning", "accelerate", "resumed")
FOUND = re.findall(r"^```python\n%%torchjob (.*?)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
CELLS = dict(zip(NAMES, FOUND, strict=True))


def installed(name):
    package = {"resumed": "accelerate"}.get(name, name)
    return pytest.param(
        name, marks=pytest.mark.skipif(not importlib.util.find_spec(package), reason=f"needs {package}")
    )


def start(shell, name, more="", behind="", **changes):
    """Start a cell of the page, with the code ``behind`` at its end, without waiting; return the job."""
    line, body = CELLS[name]
    for old, new in changes.items():
        body, count = re.subn(rf"\b{old}=\w+", f"{old}={new}", body)
        assert count == 1
    shell.run_cell("%load_ext nbtorchjob").raise_error()
    shell.run_cell(
        f"%%torchjob {re.sub('-o .*', f'-d -o job {more}', line)}\nimport nbtorchjob\n{body}{behind}"
    ).raise_error()
    return shell.user_ns["job"]


def logged(job):
    return [dict(point.metrics) for point in job.state.series[0].points]


# Lightning, which takes 5 s to import, trains once, below.
@pytest.mark.parametrize("name", [installed(name) for name in NAMES if name != "lightning"])
def test_a_cell_of_the_page_trains_on_two_ranks_and_what_it_logs_is_reported(name, shell):
    job = start(shell, name)
    steps, ranks = job.result(LIMIT)

    assert ranks == 2
    if name == "torch":
        assert not job.state.series
        return
    assert job.state.series.keys() == {0}
    points = logged(job)
    assert {"transformers": "loss"}.get(name, "train_loss") in points[0]
    assert points[-1]["step"] == (steps if name == "transformers" else steps - 1)
    if name == "transformers":
        assert points[0]["steps"] == steps
    assert all(isinstance(number, int | float) for point in points for number in point.values())


@pytest.mark.parametrize("name", [installed("lightning")])
def test_a_trainer_saves_before_its_node_ends(name, shell):
    job = start(shell, name, max_epochs=10**9)
    seen(job, lambda state: state.series)
    os.kill(job.state.nodes[0].life.start.pid, signal.SIGTERM)
    job.wait(LIMIT)

    assert "its ranks left" in str(job.exception())
    step = int(logged(job)[-1]["step"])
    assert [path.name for path in folder_of(job).checkpoints.glob(f"*step={step}.ckpt")]


@pytest.mark.parametrize("name", [installed("lightning")])
def test_a_trainer_reports_what_it_logs_and_the_next_attempt_goes_on_from_what_it_saved(name, shell):
    value = CELLS[name][1].splitlines()[-1]
    again = f"\nif nbtorchjob.attempt() == 1:\n    raise nbtorchjob.RecoverableError\n{value}\n"
    options = "--retries 1 --retry-backoff 0"
    job = start(shell, name, options, again, max_epochs="nbtorchjob.attempt()")

    assert job.result(LIMIT) == (16, 2)
    assert job.state.series.keys() == {0}
    points = logged(job)
    assert "train_loss" in points[0]
    assert points[-1]["steps"] == 16
    steps = [step for step in (point.get("step") for point in points) if step]
    assert steps == sorted(steps)
    assert steps[-1] == 16
    assert all(isinstance(number, int | float) for point in points for number in point.values())


@pytest.mark.parametrize("name", [installed("resumed")])
def test_a_training_with_accelerate_goes_on_with_another_number_of_ranks(name, shell, tmp_path):
    weights = "\ntorch.cat([parameter.flatten() for parameter in model.parameters()]).tolist()\n"

    def trained(folder, ranks, epochs):
        line, body = CELLS[name]
        body = body.replace("optimizer, sampler", f"optimizer, folder={str(tmp_path / folder)!r}, sampler")
        body = body.replace("epochs(2)", f"epochs({epochs})")
        shell.run_cell("%load_ext nbtorchjob").raise_error()
        line = f"%%torchjob {line.replace('-node 2', f'-node {ranks}')}"
        shell.run_cell(f"{line}\n{body.rsplit(chr(10), 2)[0]}{weights}").raise_error()
        return shell.user_ns["resumed"]

    trained("parts", 2, 1)
    assert trained("parts", 1, 2) == pytest.approx(trained("whole", 1, 2), rel=1e-5)


def trainers_losses(folder, until):
    """Train on 64 samples, eight a step for any number of ranks; return the losses up to a step."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    class Stop(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **rest):
            if "loss" in logs:
                losses[state.global_step] = float(logs["loss"])
            control.should_training_stop = state.global_step == until

    os.makedirs(folder, exist_ok=True)
    losses: dict[int, float] = {}
    ranks = int(os.environ["WORLD_SIZE"])
    config = GPT2Config(
        vocab_size=32,
        n_positions=8,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=0,
        eos_token_id=0,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    tokens = torch.randint(32, (64, 8), generator=torch.Generator().manual_seed(0))
    args = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=8 // ranks,
        dataloader_drop_last=True,
        num_train_epochs=1,
        logging_steps=1,
        save_steps=until or 1000,
        use_cpu=True,
        disable_tqdm=True,
    )
    torch.manual_seed(0)
    dataset = [{"input_ids": token, "labels": token} for token in tokens]
    trainer = Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=dataset, callbacks=[Stop()])
    trainer.train(resume_from_checkpoint=get_last_checkpoint(folder))
    return losses


@pytest.mark.parametrize("name", [installed("transformers")])
def test_a_trainer_goes_on_exactly_with_another_number_of_ranks_where_the_page_says_so(name, tmp_path):
    def losses(folder, ranks, until):
        spec = Elastic(nproc_per_node=ranks)
        return submit(trainers_losses, str(tmp_path / folder), until, spec=spec).result(LIMIT)

    whole, first, second = losses("whole", 1, 0), losses("parts", 2, 3), losses("parts", 1, 0)
    assert [*first, *second] == [*whole] == [*range(1, 9)]
    assert {**first, **second} == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("name", [installed("accelerate")])
def test_what_is_logged_is_left_out_where_that_is_asked_for(name, shell):
    job = start(shell, name, more="--no-autolog")

    assert job.result(LIMIT) == (8, 2)
    assert not job.state.series


def validated():
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    accelerator.log({"accuracy": 0.25, "step": 400})
    accelerator.log({"accuracy": 0.5, "step": 400}, step=7)


@pytest.mark.skipif(not importlib.util.find_spec("accelerate"), reason="needs accelerate")
def test_a_step_that_is_logged_as_a_metric_is_reported_unless_accelerate_is_given_one():
    job = submit(validated, spec=Elastic(1))
    job.result(LIMIT)

    assert logged(job) == [{"accuracy": 0.25, "step": 400}, {"accuracy": 0.5, "step": 7}]


@pytest.mark.parametrize("name", [installed("accelerate")])
def test_pods_do_the_same(name, stage):
    call = capture.from_cell(CELLS[name][1], {})
    job = submission.submit(call, stage.spec(Elastic(2), image="localhost/torch:1"))

    assert job.result(LIMIT) == (8, 2)
    assert logged(job)[-1]["step"] == 7
