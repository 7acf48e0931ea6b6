"""Code swaps in loops of frameworks, and of torch with DDP and FSDP2: forward, losses, values, rates."""

import importlib.util
from typing import Any

import pytest

from nbtorchjob import Elastic, JobSpec, capture, submission
from tests.backends.local.real import seen
from tests.patience import LIMIT

pytestmark = pytest.mark.torch

# Each loop calls `tell` with a loss, to which `criterion` adds `factor`, until `factor` is above 50.
BEGIN = """
import os, time
import torch
from nbtorchjob import report, swap_point
factor = 1.0
def criterion(out):
    return out.square().mean() + factor
class Net({base}):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.inner(x) * 0
{more}
data = torch.rand(64, 4)
losses = []
def tell(loss):
    losses.append(round(float(loss), 3))
    report(loss=losses[-1])
    time.sleep(0.01)
"""
END = """
list(dict.fromkeys(losses))
"""
LOOPS = {
    "torch": """
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
swap_point(optimizer)
while factor < 50:
    loss = criterion(model(data))
    loss.backward()
    tell(loss)
    optimizer.step()
""",
    "fsdp2": """
from torch.distributed.fsdp import fully_shard
torch.distributed.init_process_group("gloo")
model = Net()
fully_shard(model.inner)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while factor < 50:
    loss = criterion(model(data))
    loss.backward()
    tell(loss)
    optimizer.step()
    swap_point()
""",
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
model = Net()
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
swap_point(optimizer)
while factor < 50:
    loss = criterion(model(data))
    accelerator.backward(loss)
    tell(loss)
    optimizer.step()
""",
    "transformers": """
from transformers import Trainer, TrainerCallback, TrainingArguments
class Wrapped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()
    def forward(self, x):
        loss = criterion(self.net(x))
        tell(loss)
        return {"loss": loss}
class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **rest):
        control.should_training_stop = factor > 50
args = TrainingArguments(
    output_dir=os.environ["OUT"], max_steps=100000, save_strategy="no", report_to=[], use_cpu=True
)
Trainer(Wrapped(), args, train_dataset=[{"x": x} for x in data], callbacks=[Stop()]).train()
""",
    "lightning": """
import lightning
class Stop(lightning.Callback):
    def on_train_batch_end(self, trainer, *rest):
        trainer.should_stop = factor > 50
trainer = lightning.Trainer(
    accelerator="cpu", devices=2, strategy="ddp", max_epochs=-1, callbacks=[Stop()], logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
trainer.fit(Net(), torch.utils.data.DataLoader(data, batch_size=8))
""",
}
LIGHTNING = """
    def training_step(self, batch, index):
        loss = criterion(self(batch))
        tell(loss)
        return loss
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
"""
FORWARD = """
class Net({base}):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 1)
    def forward(self, x):
        return self.inner(x) * 0 + 3
{more}
"""


def installed(name):
    module = "torch" if name == "fsdp2" else name
    needed = pytest.mark.skipif(not importlib.util.find_spec(module), reason=f"needs {module}")
    return pytest.param(name, marks=needed)


@pytest.mark.parametrize("name", [installed(name) for name in LOOPS])
def test_a_loop_goes_on_with_a_new_forward_a_new_loss_and_new_values(name, tmp_path):
    lightning = name == "lightning"
    words = {"base": "lightning.LightningModule" if lightning else "torch.nn.Module"}
    words["more"] = LIGHTNING if lightning else ""
    begin = ("import lightning\n" if lightning else "") + BEGIN.format(**words)
    call = capture.from_cell(begin + LOOPS[name] + END, {})
    job = submission.submit(call, JobSpec(Elastic(1, nproc_per_node=2), env={"OUT": str(tmp_path)}))
    seen(job, lambda state: len(state.series) == 2 or state.phase.terminal)

    def reported(name, value):
        # A loop may change twice at points of one step: wait for the losses between two swaps.
        seen(
            job,
            lambda state: (
                state.phase.terminal or value in {point.metrics.get(name) for point in state.spoken.points}
            ),
        )

    assert job.swap(FORWARD.format(**words)).names["Net"] == "replaced"
    reported("loss", 10.0)
    assert (
        job.swap("def criterion(out):\n    return out.square().mean() + factor * 10").point == "swap_point()"
    )
    reported("loss", 19.0)
    rate: dict[str, Any] = {"optimizer.lr": 0.025}
    assert job.swap(**rate).names == {"optimizer.lr": "replaced"}
    reported("lr", 0.025)
    job.swap(factor=100)
    assert set(job.result(LIMIT)) >= {1.0, 10.0, 19.0}
    assert "+optimizer.lr = 0.025" in [swap.diff for swap in job.state.swapped]
    assert 0.025 in {point.metrics.get("lr") for point in job.state.spoken.points}
