"""Posts what rank 0 reports to Kubeflow's trainer, which writes it into the TrainJob's status.

With its feature gate ``TrainJobStatus`` (alpha in 2.3), the trainer gives the pods of a TrainJob its URL, a
token for that job and the authority of its certificate. ``init`` posts, so no rank waits for that.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from typing import Any, Deque, Dict, Optional, Tuple
from urllib.parse import urlsplit

from nbtorchjob.runtime.api.report import TOTALS, total
from nbtorchjob.runtime.facts import emit

URL, CA, TOKEN = ("KUBEFLOW_TRAINER_SERVER_" + name for name in ("URL", "CA_CERT", "TOKEN"))
_EVERY_S = 5.0  # as Kubeflow's own SDK does (0.5): each post is written to the cluster's store
_SLOWEST_S = 300.0  # if there is no answer
_DOUBLED = 6  # times at most: by then it is the slowest
_TIMEOUT_S = 5.0
_LAST_S = 2.0  # for the last post: the pod ends after it
_TOLD_AFTER = 3  # failures in a row: the trainer may just be restarting
# Limits of its API (2.3): if there is one metric too many, or one is too long, it refuses them all.
_MOST, _LONGEST = 256, 64
_MOST_SECONDS = (1 << 31) - 1
_RECENT = 8  # reports to compute the speed from


class Poster(threading.Thread):
    """Posts the newest status, at most every few seconds, and goes on if that fails."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="trainer status")
        self._round = -1
        self._zero = False  # whether the code counts from 0
        self._metrics: Dict[str, float] = {}
        self._counts: Deque[Tuple[float, float]] = deque(maxlen=_RECENT)  # times, and how many were done
        self._status: Optional[Dict[str, Any]] = None
        self._news, self._ended = threading.Event(), threading.Event()

    def note(self, record: Dict[str, Any]) -> None:
        """Update the status from an event of the node."""
        if record["event"] != "Reported" or record["rank"] or record["round"] < self._round:
            return
        if record["round"] > self._round:
            self._round = record["round"]
            self._metrics, self._zero = {}, False
            self._counts.clear()
        self._metrics = {**self._metrics, **record["metrics"]}
        now = record["time"]
        status: Dict[str, Any] = {
            "lastUpdatedTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
            "metrics": [
                {"name": name, "value": str(value)}
                for name, value in self._metrics.items()
                if 0 < len(name) <= _LONGEST and len(str(value)) <= _LONGEST
            ][:_MOST],
        }
        for unit in TOTALS:
            most = total(unit, self._metrics)
            if most is not None:
                # Code that counts from 0 has done one more step than it reports.
                count = self._metrics[unit]
                self._zero = self._zero or (not self._counts and count == 0)
                done = count + self._zero
                self._counts.append((now, done))
                (since, before), left = self._counts[0], max(0.0, most - done)
                progress = {"progressPercentage": max(0, min(100, int(100 * done / most)))}
                if done > before:
                    seconds = (now - since) / (done - before) * left
                    progress["estimatedRemainingSeconds"] = max(0, int(min(seconds, _MOST_SECONDS)))
                status.update(progress)
                break
        self._status = status
        self._news.set()

    def finish(self) -> None:
        """Post the last status, if that doesn't take long."""
        self._ended.set()
        self._news.set()
        self.join(_LAST_S)

    def run(self) -> None:
        """See the class."""
        posted, failed = None, 0
        while True:
            self._news.wait()
            ended = self._ended.is_set()  # read before the status, so that the last one is posted
            self._news.clear()
            if self._status != posted:
                posted = self._status
                why = _post({"trainerStatus": posted})
                failed = failed + 1 if why else 0
                if why:  # try again later
                    posted = None
                    self._news.set()
                if failed == _TOLD_AFTER:
                    try:
                        emit(
                            "Notice",
                            text="metrics can't be posted to the TrainJob's status: %.300s" % why,
                        )
                    except OSError:  # a full disk
                        pass
            if ended:
                return
            # 2 to the power of some days' failures is too large for a float.
            self._ended.wait(min(_EVERY_S * 2 ** min(failed, _DOUBLED), _SLOWEST_S))


def _post(body: Dict[str, Any]) -> str:
    """Post a status; return what went wrong, or "" if nothing did."""
    try:
        import ssl  # late: the host reads the names above, and a node may have nothing to post
        from http.client import HTTPSConnection

        # Certificate and token are replaced while the pod runs. The trainer is in the cluster: no proxy.
        url, context = urlsplit(os.environ[URL]), ssl.create_default_context(cafile=os.environ.get(CA))
        with open(os.environ[TOKEN]) as file:
            headers = {"Authorization": "Bearer " + file.read().strip(), "Content-Type": "application/json"}
        connection = HTTPSConnection(str(url.hostname), url.port, timeout=_TIMEOUT_S, context=context)
        try:
            connection.request("POST", url.path, json.dumps(body), headers)
            answer = connection.getresponse()
            return "" if answer.status == 200 else "%d %s" % (answer.status, answer.reason)
        finally:
            connection.close()
    except Exception as exc:  # whatever it is, the job goes on without it
        return "%s: %s" % (type(exc).__name__, exc)
