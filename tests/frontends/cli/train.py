"""The script of these tests: they run its functions as jobs, from a folder of their own."""

import os
import sys
from dataclasses import dataclass

from scales import SCALE  # type: ignore[import-not-found]


@dataclass
class Result:
    loss: float


def train(lr, steps: int = 2, tag: str = "", *, fast=False):
    rank = int(os.environ["RANK"])
    for step in range(steps):
        print("rank", rank, "step", step)
    return {"loss": lr * SCALE, "tag": tag, "fast": fast}


def half(x):
    return x / 0


def best():
    return Result(0.5)


def wait(stop):
    import time

    print("begun", flush=True)
    while not os.path.exists(stop):
        time.sleep(0.01)
    print("ended", flush=True)
    return 7


def chatter(lines):
    for n in range(lines):
        print("line", n)


def array():
    import torch

    return {"mean": torch.tensor([1.0, 2.0]), "worst": float("inf")}


def looped():
    loop: dict[str, list[object]] = {"deep": []}
    loop["deep"].append(loop)
    return loop


def huge():
    return [1, 10**5000, 2.5]


class Mute:
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


def mute():
    return Mute()


def here():
    return os.environ["RANK"], __name__


if __name__ == "__main__":
    sys.exit("this is only for running it")


def stops(number: int):
    breakpoint()
    return number * 2
