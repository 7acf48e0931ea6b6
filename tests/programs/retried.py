"""A kernel that submits a job and waits for it: NAME BACKOFF GO. Attempts fail once the file GO exists."""

import os
import sys
import time

import nbtorchjob

name, backoff, go = sys.argv[1:]


def train(go):
    while not os.path.exists(go):
        time.sleep(0.01)
    raise nbtorchjob.RecoverableError("again")


retry = nbtorchjob.Retry(retries=1, backoff=float(backoff))
job = nbtorchjob.submit(train, go, spec=nbtorchjob.JobSpec(name=name, retry=retry))
print("ready", flush=True)
job.result()
