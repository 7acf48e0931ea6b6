"""The extension as Jupyter Server sees it: its routes, and what an administrator can set."""

from __future__ import annotations

from jupyter_server.extension.application import ExtensionApp
from traitlets import Float, Int

from nbtorchjob.server import handlers
from nbtorchjob.server.lanes import Lanes

_JOBS = r"/nbtorchjob/api/jobs"
_JOB = rf"{_JOBS}/([^/]+)"
_ROUTES = [
    (_JOBS, handlers.JobsHandler),
    (_JOB, handlers.JobHandler),
    (rf"{_JOB}/describe", handlers.DescriptionHandler),
    (rf"{_JOB}/manifests", handlers.ManifestsHandler),
    (rf"{_JOB}/logs/([^/]+)", handlers.LogHandler),
    (rf"{_JOB}/([^/]+)", handlers.VerbHandler),
]


class TorchJobApp(ExtensionApp):
    """Torch jobs over HTTP, for the buttons of a job's card."""

    name = "nbtorchjob"

    # Proxies give up after 60 s without an answer (nginx's proxy_read_timeout).
    patience_s = Float(55.0, help="seconds a request waits for a backend").tag(config=True)
    at_once = Int(4, help="requests that ask one cluster, or this machine, at a time").tag(config=True)

    lanes: Lanes

    def initialize_settings(self) -> None:
        """Open the lanes that requests wait in."""
        self.lanes = Lanes(self.patience_s, self.at_once)

    def initialize_handlers(self) -> None:
        """Register the routes."""
        self.handlers.extend(_ROUTES)
