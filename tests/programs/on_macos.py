"""A client on macOS, as far as Linux can show it: without Linux's own calls, /proc and torch's ranks.

Takes no arguments; prints the lines that a test compares.
"""

import builtins
import importlib
import io
import os
import pkgutil
import select
import signal
import socket
import subprocess  # noqa: F401  # like asyncio and sysconfig, it checks the platform on import
import sys
import sysconfig
import types

LINUX_ONLY = {
    os: (
        "sched_getaffinity",
        "sched_setaffinity",
        "pidfd_open",
        "memfd_create",
        "eventfd",
        "splice",
        "prlimit",
    ),
    signal: ("SIGRTMIN", "pidfd_send_signal", "sigtimedwait"),
    select: ("epoll",),
    socket: ("SO_PEERCRED", "AF_NETLINK"),
}
sysconfig.get_config_vars()
for module, names in LINUX_ONLY.items():
    for name in names:
        if hasattr(module, name):
            delattr(module, name)


def without_proc(call):
    """Return a call that finds neither /proc nor /sys."""

    def checked(path=".", *args, **kwargs):
        if isinstance(path, (str, bytes, os.PathLike)):
            text = os.fsdecode(path)
            if text.startswith(("/proc", "/sys/")):
                raise FileNotFoundError(2, "No such file or directory", text)
        return call(path, *args, **kwargs)

    return checked


os.open, os.listdir = without_proc(os.open), without_proc(os.listdir)
builtins.open = io.open = without_proc(open)
proxies = types.ModuleType("_scproxy")  # the system's proxy settings, which only macOS has
vars(proxies).update(_get_proxies=dict, _get_proxy_settings=dict)
sys.modules["_scproxy"] = proxies
sys.platform = "darwin"

import nbtorchjob  # noqa: E402
from nbtorchjob import Cluster, Elastic, JobSpec, SpecError  # noqa: E402

# The runtime that ships into nodes runs on Linux; jupyter-server's own imports need macOS's libraries.
ELSEWHERE = ("nbtorchjob.runtime.", "nbtorchjob.frontends.server.app", "nbtorchjob.__main__")
for info in pkgutil.walk_packages(nbtorchjob.__path__, "nbtorchjob."):
    if not info.name.startswith(ELSEWHERE):
        importlib.import_module(info.name)
print("imported")


def train(lr):
    return lr


cluster = JobSpec(Elastic(2), backend="kubernetes", cluster=Cluster(image="torch:2", kind="indexedjob"))
print("kind: Job" in nbtorchjob.dry_run(train, 0.1, spec=cluster))
try:
    nbtorchjob.submit(train, 0.1)
except SpecError as exc:
    print(exc)
print(nbtorchjob.jobs())
