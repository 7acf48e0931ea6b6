"""Run two cells, named as by ipykernel after its process, and print a call's fingerprint: PID COUNT LR."""

import linecache
import sys

from nbtorchjob import capture
from nbtorchjob.capture import identity

pid, count, lr = sys.argv[1:]
namespace = sys.modules["__main__"].__dict__
namespace["lr"] = float(lr)


def run(text, name):
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec"), namespace)


run("class Model:\n    scale = 2\n", f"/tmp/ipykernel_{pid}/1.py")
run("def train(lr):\n    return Model.scale * lr\n", f"/tmp/ipykernel_{pid}/2.py")
call = capture.from_cell("train(lr)", namespace, filename=f"<torchjob cell {count}>")
print(identity.of(call))
