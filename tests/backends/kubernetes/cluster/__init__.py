"""A Kubernetes for tests: an API server over HTTP, pods as local processes, the operators' controllers.

The alternative, kmock, serves objects over real sockets, but has no resourceVersion, optimistic concurrency,
selectors, subresources, bookmarks, 410, schemas or logs, and needs Python 3.11: all that matters here would
have to be written on top of it. aiohttp, a dependency of the official client, is enough.
"""

from tests.backends.kubernetes.cluster.emulator import KINDS as KINDS
from tests.backends.kubernetes.cluster.emulator import Emulator as Emulator
