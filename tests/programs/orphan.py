"""A kernel that submits a job and waits for it: NAME STOP. The job counts until the file STOP exists."""

import os
import sys
import time

import nbtorchjob

name, stop = sys.argv[1:]


def work(stop):
    n = 0
    while not os.path.exists(stop):
        print("line", n)
        n += 1
        time.sleep(0.01)
    return n


job = nbtorchjob.submit(work, stop, spec=nbtorchjob.JobSpec(name=name))
print("ready", flush=True)
job.result()
