"""A Kubernetes on this machine for tests: an API server over HTTP, pods as local processes, the operators' controllers.

kmock was looked at first. It serves objects over real sockets, but knows no resourceVersion, no optimistic concurrency, no
selectors, subresources, bookmarks or 410, no schemas and no logs, and needs Python 3.11: all that matters here would have
been written on top of it. aiohttp, which the official client brings along, is enough.
"""

from tests.backends.kubernetes.cluster.emulator import KINDS as KINDS
from tests.backends.kubernetes.cluster.emulator import Emulator as Emulator
