"""Run a payload with a torch agent that gets stuck once its ranks have died: PAYLOAD."""

import os
import runpy
import signal
import sys
import threading

job = sys.argv[0] = sys.argv[1]
sys.path[0] = job

from torch.distributed.elastic.agent.server import local_elastic_agent  # noqa: E402

from nbtorchjob.runtime.node import processes  # noqa: E402  from the payload


def stuck(self, group):
    for worker in group.workers:
        os.kill(int(worker.id), signal.SIGKILL)
    threading.Event().wait()


local_elastic_agent.LocalElasticAgent._monitor_workers = stuck
processes.LIMIT_S = 1.0
runpy.run_path(job, run_name="__main__")
