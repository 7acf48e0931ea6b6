"""Plant what an image may lack; check that we name it and that ``--package`` installs it, by pip and by uv.

    python -m tests.benchmarks.environment_mended [--uv PROGRAM] [WORD...]

For each case with all the words in its name, print the report before a rank started and the outcome, as
ranks have it or in the installer's words. The exit code is 0 if all outcomes are the expected ones.
"""

import argparse
import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from nbtorchjob import capture, submission
from nbtorchjob.errors import JobFailedError, LackingError, NBTorchJobError
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state.facts.events import Installed
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.images import TORCH, built
from tests.benchmarks.measure import own_state
from tests.environment import planted
from tests.environment.built import project, wheel
from tests.environment.index import Index
from tests.environment.installed import install

LOGIN = "me:secret"
# Planted differences that are none, or none to an installer: the version that stays on the image.
STAYS = {"another build": "1.2.0+cu126", "a file of Debian's": "None"}


@dataclass(frozen=True)
class Case:
    """A request and its expected outcome: each rank's ``value``, or a pattern for why it ``fails``."""

    name: str
    modules: Sequence[str]
    value: str = ""
    package: Sequence[str] = ("like-here",)
    index: str = "open"
    env: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    storage: bool = False
    fails: str = ""

    def failed(self, text: str) -> bool:
        """Return whether ``text`` reports the expected failure, without a password."""
        return bool(self.fails and re.search(self.fails, text)) and "secret" not in text

    @property
    def cell(self) -> str:
        names = ", ".join(self.modules)
        return f"import {names}\n' '.join(str(getattr(module, 'version', None)) for module in ({names},))"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A handler that serves a folder, and logs nothing."""

    def log_message(self, *_: object) -> None:
        pass


class Rig:
    """A cluster with an image that lacks packages, a kernel that has them, and indexes that have some."""

    def __init__(self, folder: Path, cluster: Emulator, uv: str, served: ExitStack) -> None:
        self._folder, self.served = folder, served
        self.here, self.wheels, self.store = folder / "here", folder / "wheels", folder / "store"
        self.here.mkdir()
        self.wheels.mkdir()
        programs = Path(built(TORCH))
        (self.there,) = programs.parent.glob("lib/*/site-packages")
        if uv:
            (programs / "uv").symlink_to(uv)
        sys.path.insert(0, str(self.here))
        os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
        self.indexes: dict[str, Index] = {}

    def cases(self) -> Iterator[Case]:
        """Plant each difference; yield the case with its expected outcome."""
        for name, kernel_packages, packages, imported in planted.apart():
            planted.plant(self.here, *kernel_packages)
            planted.plant(self.there, *packages)
            for distribution, version, *modules in kernel_packages:
                wheel(self.wheels, distribution, version.partition("+")[0], modules=modules)
            (need,) = capture.from_cell(f"import {imported}", {}).needs
            index = "private" if "missing" in name else "open"
            yield Case(name, [need.module], STAYS.get(name, need.version), index=index)
        yield from self._of_indexes()
        yield from self._of_requests()

    def _have(self, name: str, version: str = "1.0", *requires: str, wheels: bool = True) -> str:
        """Install a distribution here, and add its wheel to the indexes if ``wheels``; return its module."""
        info = install(self.here, name, version, f"{name}.py")
        with open(info / "METADATA", "a") as file:
            file.writelines(f"Requires-Dist: {requirement}\n" for requirement in requires)
        if wheels:
            wheel(self.wheels, name, version, *requires)
        return name

    def _of_indexes(self) -> Iterator[Case]:
        lost = self._have("lost")
        yield Case("a private index, without credentials", [lost], fails="401|No matching", index="closed")
        yield Case("an index that forbids", [lost], fails="403", index="forbids")
        yield Case(
            "an index that hangs",
            [lost],
            fails="didn't install lost==1.0 within 3 s",
            index="hangs",
            env={"NBTORCHJOB_INSTALL_WITHIN": "3"},
        )
        yield Case("an index that isn't there", [lost], fails="onnect", index="none")
        yield Case("a yanked release", [self._have("yanked")], "1.0", index="yanked")
        both = [self._have("shared"), self._have("below")]
        twice = Case("two nodes and one store", both, "1.0 1.0", nodes=2, storage=True)
        yield twice
        yield replace(twice, name="its second start, without the index", index="none")

    def _of_requests(self) -> Iterator[Case]:
        wheel(self.wheels, "wants_old", "1.0", "below<1")
        self._have("beneath", "2.0")
        wheel(self.wheels, "beneath", "3.0")
        above = self._have("above", "1.0", "beneath")
        yield Case("what it needs, newer on the index", [above, "beneath"], "1.0 2.0")
        yield Case(
            "a conflict", ["below"], fails="conflict|unsatisfiable", package=["wants-old", "below==1.0"]
        )
        self._have("inconsistent", "1.0", "beneath<2")
        yield Case("a kernel at odds with itself", ["inconsistent"], "1.0")
        self._have("oldtorch", "1.0", "torch<2")
        yield Case("another torch", ["oldtorch"], fails=r"torch ?<2|torch==2")
        self._sdist("unbuilt", 'raise RuntimeError("no compiler here")')
        yield Case("a build that fails", [self._have("unbuilt", wheels=False)], fails="no compiler here")
        self._sdist("builds", "pass")
        yield Case("a build that succeeds", [self._have("builds", wheels=False)], "1.0")
        for name, tag in (
            ("newlibc", "cp311-cp311-manylinux_2_99_x86_64"),
            ("sparc", "cp311-cp311-manylinux_2_17_sparc64"),
            ("windows", "cp311-cp311-win_amd64"),
            ("oldpython", "cp27-cp27m-manylinux1_x86_64"),
        ):
            wheel(self.wheels, name, tag=tag)
            self._have(name, wheels=False)
            yield Case(f"only a wheel of {tag}", [name], fails=f"{tag}|no wheels with ")
        yield Case("on no index", [self._have("nowhere", wheels=False)], fails="nowhere")
        project_path = project(self._folder / "project", "project_mine", "3.0")
        yield Case("a project of this machine", ["project_mine"], "3.0", package=[str(project_path)])
        own = self._folder / "own"
        planted.file(own, "inplace.py", "version = '7.0'\n")
        install(self.here, "inplace", "7.0", url=own.as_uri(), dir_info={"editable": True})
        sys.path.append(str(own))
        yield Case("installed in place", ["inplace"], "7.0")
        self._local()
        yield Case("installed from a folder of this machine", ["fromfolder"], "1.0")
        self._from_git()
        yield Case("installed from a repository", ["fromgit"], "5.0")

    def _sdist(self, name: str, first: str) -> None:
        folder = project(self._folder / f"{name}-1.0", name, first=first)
        with tarfile.open(self.wheels / f"{name}-1.0.tar.gz", "w:gz") as archive:
            archive.add(folder, folder.name)

    def _local(self) -> None:
        folder = project(self._folder / "fromfolder", "fromfolder")
        install(self.here, "fromfolder", "1.0", "fromfolder.py", url=folder.as_uri(), dir_info={})

    def _from_git(self) -> None:
        folder = project(self._folder / "fromgit", "fromgit", "5.0")
        git = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e"]
        for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "it"], ["update-server-info"]):
            subprocess.run([*git, *words], check=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, stdout=subprocess.PIPE, text=True)
        serve = functools.partial(Quiet, directory=str(folder))
        server = self.served.enter_context(http.server.ThreadingHTTPServer(("127.0.0.1", 0), serve))
        self.served.callback(server.shutdown)
        threading.Thread(target=server.serve_forever).start()
        url = f"http://localhost:{server.server_port}/.git"
        vcs = {"vcs": "git", "commit_id": head.stdout.strip()}
        install(self.here, "fromgit", "5.0", "fromgit.py", url=url, vcs_info=vcs)

    def run(self, case: Case, tool: str) -> tuple[bool, str, str, float]:
        """Run a case; return whether it came out right, the first report, the outcome, and the seconds."""
        cluster = Cluster(namespace="default", image=TORCH, memory="1500Mi", cpu="400m")
        plain = JobSpec(backend="kubernetes", cluster=cluster)
        call = capture.from_cell(case.cell, {})
        note = self._said(call, plain)
        url = self.indexes[case.index].url(LOGIN if case.index == "private" else "")
        env = {"PIP_INDEX_URL": url} if tool == "pip" else {"UV_DEFAULT_INDEX": url}
        store = str(self.store / tool) if case.storage else None
        spec = replace(
            plain,
            launch=Elastic(case.nodes),
            cluster=replace(cluster, storage=store),
            env={"PIP_RETRIES": "0", "UV_HTTP_RETRIES": "0", **env, **case.env},
            package=[*case.package],
            all_ranks=True,
        )
        begun = time.monotonic()
        right, came = self._came(call, spec, case, tool)
        return right, note, came, time.monotonic() - begun

    def _said(self, call: capture.Call, spec: JobSpec) -> str:
        try:
            notes = submission.prepare(call, submission.check(spec)).notes
        except LackingError as exc:
            return f"refused here: {exc}".partition(", which")[0]
        job = submission.submit(call, spec)
        try:
            return "; ".join(notes) or f"nothing; it runs ({job.result()})"
        except JobFailedError as exc:
            ranks = "" if job.state.world_size == 0 else ", by a rank"
            match = re.search(r"this image lacks [^,]*|\w+Error: .*", str(exc))
            return f"refused there{ranks}: {match[0] if match else exc}"
        finally:
            job.delete()

    def _came(self, call: capture.Call, spec: JobSpec, case: Case, tool: str) -> tuple[bool, str]:
        try:
            job = submission.submit(call, spec)
        except NBTorchJobError as exc:
            return case.failed(str(exc)), f"refused here: {exc}"
        try:
            values = job.results(120)
            by = {install.by for install in job.state.installs.values() if isinstance(install, Installed)}
            count = max((len(install.packages) for install in job.state.installs.values()), default=0)
            text = f"{values[0]} ({count} by {'/'.join(sorted(by)) or 'nobody'})"
            return values == [case.value] * case.nodes and by <= {tool, ""}, text
        except JobFailedError as exc:
            text = str(exc).partition("\n")[2]
            return job.state.world_size == 0 and case.failed(text), text
        finally:
            job.delete()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--uv", default=shutil.which("uv") or "", help="the program to try, too")
    arguments = parser.parse_args()
    wrong = 0
    with own_state() as folder, Emulator(kinds=("indexedjob",)) as cluster, ExitStack() as served:
        rig = Rig(folder, cluster, arguments.uv, served)
        cases = [case for case in rig.cases() if all(word in case.name for word in arguments.words)]
        for name, how in (
            ("open", {}),
            ("private", {"login": LOGIN}),
            ("closed", {"login": LOGIN}),
            ("forbids", {"code": 403}),
            ("hangs", {"hangs": True}),
            ("yanked", {"yanked": os.listdir(rig.wheels)}),
            ("none", {}),
        ):
            rig.indexes[name] = Index(rig.wheels, **how)
            if name == "none":
                with rig.indexes[name]:
                    pass
            else:
                served.enter_context(rig.indexes[name])
        for case in cases:
            for tool in ("pip", "uv") if arguments.uv else ("pip",):
                right, note, came, took = rig.run(case, tool)
                wrong += not right
                print(f"{'ok   ' if right else 'WRONG'} {case.name} [{tool}, {took:.1f} s]")
                if tool == "pip":
                    print(textwrap.indent(note, "        said: "))
                print(textwrap.indent(came, "        came: "), flush=True)
    print(f"\n{len(cases)} cases, {wrong} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
