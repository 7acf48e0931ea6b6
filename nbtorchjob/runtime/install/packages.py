"""Installs a job's packages beside those of the image: once per node, before its ranks start.

Where packages come from is up to the node: pip and uv use their settings there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import time
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple, Type
from urllib.parse import quote

from nbtorchjob.runtime.facts import emit
from nbtorchjob.runtime.install import environment
from nbtorchjob.runtime.store.payload import Payload, PayloadError

WHEELS = "wheels/"  # members of the payload
_PROVIDED = "NBTORCHJOB_PROVIDED"
WITHIN = "NBTORCHJOB_INSTALL_WITHIN"
_WITHIN_S = 900.0
_UNUSED_S = 30 * 24 * 3600.0  # that a kept folder stays
_MOST = 1 << 18  # bytes of an installer's output that are searched

_OF_TORCH = re.compile(
    r"(torch|triton|pytorch-triton.*|nvidia-.*-cu\d+|nvidia-(cu\w+|nccl\w*|nv\w+)|cuda-.*)$"
)

_TROUBLES = re.compile(
    r"(?i)timed? ?out|connection|temporar|name resolution|unreachable|\b(?:429|50[0234])\b|sending request"
).search
_BOUNDS = "constraints"
_LONGEST = 300  # characters of a line
# In uv's dry run: what it would install, and from where if that was given.
_DECIDED = re.compile(r"(?m)^ [+~] ([^=\s]+)(?:==(\S+))?(?: @ (.+)| \(from (.+)\))?$")
# In pip's log, where each line has a time.
_IN_LOG = re.compile(r"\S+\s+(?:Could not fetch URL (.*)|(\w*(?:Error|Exception): .*))").match
_PASSED_OVER = re.compile(r".*the wheel's tags \((.*?)\) are .*?/([^/\s-]+)-([^/\s-]+)-[^/\s]+\.whl").match
_NO_MATCH = re.compile(r"No matching distribution found for ([\w.-]+)(?:==([^\s,;]+))?").search
_FOR_OTHERS = re.compile("no wheels (?:with|for)").search
_PIP_FILES = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf", "~/.pip/pip.conf", "~/.config/pip/pip.conf")
_UV_FILES = ("/etc/uv/uv.toml", "~/.config/uv/uv.toml")
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*").match
_SECRET = re.compile(r"//[^/\s@]+@")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class InstallError(PayloadError):
    """Packages can't be installed; ``again`` says whether another attempt follows, as it may succeed."""

    def __init__(self, text: str, *, again: bool = False) -> None:
        super().__init__(text)
        self.again = again


def of_torch(name: str) -> bool:
    """Whether a distribution belongs to the image's torch: another one would bring another CUDA."""
    return bool(_OF_TORCH.match(name))


def provide(
    payload: Payload, folder: str, node: int, key: Optional[bytes] = None, *, warm: bool = False
) -> str:
    """Make the payload's packages importable for this node and its ranks; return the folder they are in.

    A ``warm`` process that has imported another version of one begins anew. What the job's store keeps is
    signed with the secret that ``key`` hides. Raises ``InstallError``.
    """
    if _PROVIDED in os.environ:
        return os.environ.pop(_PROVIDED)
    try:
        # A distribution may be installed whose module can't be found, such as a binary for another Python.
        needs = payload.header.get("needs") or ()
        broken = {need["distribution"] for need in needs if environment.find(need["module"]) is None}
        request = dict(payload.header["packages"], broken=sorted(broken))
        began = time.monotonic()
        emit("Installing", node=node)
        # Write the wheels that came along
        into = os.path.join(folder, "wheels")
        wheels: List[str] = []
        for name in request["wheels"]:
            os.makedirs(into, exist_ok=True)
            wheels.append(os.path.join(into, os.path.basename(name)))
            with open(wheels[-1], "wb") as file:
                file.write(payload.read(WHEELS + name))
        if request["kept"]:
            target, by = _kept(request, wheels, node)
        else:
            target = os.path.join(folder, "packages")
            by = _stocked(request, wheels, target, node, key)
        names = ["%s %s" % pair for pair in sorted(environment.distributions(target).items())]
        emit("Installed", node=node, packages=names, by=by, seconds=round(time.monotonic() - began, 3))
        # Before the image's own: these were requested because the image's wouldn't do.
        sys.path.insert(1, target)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (target, os.environ.get("PYTHONPATH"))))
    except InstallError as exc:
        exc.again = exc.again and payload.header["retry"]["retries"] > 0
        raise
    if warm and shadows(target):
        os.environ[_PROVIDED] = target
        # Run the payload in a fresh interpreter, in this one's place.
        code = (
            "import runpy, sys; sys.argv[:] = %r; sys.path[:] = %r; runpy.run_path(%r, run_name='__main__')"
        )
        sys.stdout.flush()
        sys.stderr.flush()
        others = [entry for entry in sys.path if entry != payload.path]
        os.execv(sys.executable, [sys.executable, "-c", code % ([payload.path], others, payload.path)])
    return target


def shadows(folder: str) -> bool:
    """Whether this process has imported another version of a module in ``folder``, as a warm one may have."""
    tops = {name.partition(".")[0] for name in os.listdir(folder) if not name.endswith("-info")}
    loaded = (sys.modules.get(name) for name in tops)
    files = (getattr(module, "__file__", None) for module in loaded if module is not None)
    return any(not (file or "").startswith(folder + os.sep) for file in files)


def _kept(request: Dict[str, Any], wheels: Sequence[str], node: int) -> Tuple[str, str]:
    """Return the folder that has the packages for all jobs, and the tool that made it, "" if it existed."""
    kept = request["kept"]
    os.makedirs(kept, 0o700, exist_ok=True)
    status = os.lstat(kept)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o022:
        raise InstallError("%s must be a folder that is yours alone: move away what is there" % kept)
    target = os.path.join(kept, _key(request))
    with open(target + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several nodes, or jobs, begin at once
        if os.path.isdir(target):
            os.utime(target)
            return target, ""
        # Remove what no job has used for long, and what a killed job left unfinished.
        for name in os.listdir(kept):
            path = os.path.join(kept, name)
            try:
                unused = time.time() - os.stat(path).st_mtime
            except OSError:  # another process was faster
                continue
            if unused > (_WITHIN_S * 2 if name.endswith(".partial") else _UNUSED_S) and os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
        partial = "%s.%d.partial" % (target, os.getpid())
        try:
            by = _install(request, wheels, partial, node)
            os.rename(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return target, by


def _stocked(
    request: Dict[str, Any], wheels: Sequence[str], target: str, node: int, key: Optional[bytes]
) -> str:
    """Fill ``target`` from the job's store, or else install into it and keep that; return the tool's name."""
    if not (request["stock"] and key):
        return _install(request, wheels, target, node)
    from nbtorchjob.runtime.install.stock import Stock  # late: only the payloads of jobs with a store have it

    stock = Stock(request["stock"], key, _key(request), os.path.dirname(target))
    if stock.take(target):
        return ""
    by = _install(request, wheels, target, node)
    if node == 0:  # the others have the same
        stock.keep(target)
    return by


def _key(request: Dict[str, Any]) -> str:
    """Return a name for a request in this environment: the same request in the same one shares a folder."""
    fields = {name: request[name] for name in ("requirements", "constraints", "exactly", "wheels", "broken")}
    description = environment.description()
    identity = [description["platform"], description["distributions"], sys.executable, sys.version]
    text = json.dumps([fields, identity], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _install(request: Dict[str, Any], wheels: Sequence[str], target: str, node: int) -> str:
    """Install into ``target`` what is requested and missing; return the tool's name.

    Only what the image lacks is installed: a plain ``pip install --target`` would bring its own copy of
    everything that a requirement needs, even torch.
    """
    os.makedirs(target, exist_ok=True)
    work = target + ".work"
    os.makedirs(work, exist_ok=True)
    versions: Dict[str, str] = environment.description()["distributions"]
    own = ["%s==%s" % item for item in versions.items() if of_torch(item[0])]
    with open(os.path.join(work, _BOUNDS), "w", encoding="utf-8") as file:
        file.writelines("%s\n" % line for line in [*request["constraints"], *own])
    names = environment.in_words(
        [*map(os.path.basename, wheels), *request["requirements"], *request["exactly"]]
    )
    try:
        tool = _tool(request, work)(names, work)
        requirements = [*wheels, *request["requirements"]]
        missing = tool.missing(requirements) if requirements else []
        missing += _beside(request, wheels, versions, {item.name for item in missing})
        for item in missing:
            if of_torch(item.name):
                has = versions.get(item.name)
                raise InstallError(
                    "%s would be installed %s, but it belongs to the image: ask for versions that go with "
                    "what the image has, or use an image with %s"
                    % (item.title, "in place of " + has if has else "beside the image's torch", item.title)
                )
        if missing:
            emit("Installing", node=node, packages=[item.title for item in missing])
            tool.run("--no-deps", "--target", target, "--", *(item.line for item in missing))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return tool.name


class _Missing:
    """What an installer decided to install: a name, a version, and its source, if that was given."""

    def __init__(self, name: str, version: str, source: str = "") -> None:
        self.name = environment.normalised(name)
        self.title = ("%s %s" % (self.name, version)).rstrip()
        self.line = "%s @ %s" % (name, source) if source else "%s==%s" % (name, version)


def _beside(
    request: Dict[str, Any], wheels: Iterable[str], versions: Dict[str, str], besides: Set[str]
) -> Iterator[_Missing]:
    """Yield what has to be installed besides what an installer decides on.

    These are broken distributions, which it takes for installed by their metadata; exact versions, which it
    would refuse as a whole; and wheels that came along: it skips those whose version is installed, though
    they may have other contents.
    """
    for path in wheels:
        name, version = os.path.basename(path).split("-")[:2]
        if environment.normalised(name) not in besides:
            yield _Missing(name, version, "file://" + quote(path))
    for line in request["exactly"]:
        name, _, version = line.partition("==")
        has = versions.get(name, "").partition("+")[0]
        if name not in besides and (has != version or name in request["broken"]):
            yield _Missing(name, version)
    names = {environment.normalised(match.group()) for match in map(_NAMED, request["requirements"]) if match}
    for name in names.intersection(request["broken"]) - besides:
        if name in versions:
            yield _Missing(name, versions[name].partition("+")[0])


class _Installer:
    """A program that installs ``names``, in words; its own files are in the folder ``work``."""

    name = ""
    command: Sequence[str] = ()

    def __init__(self, names: str, work: str) -> None:
        self._names, self._work = names, work
        self._within = float(os.environ.get(WITHIN) or _WITHIN_S)
        self._until = time.monotonic() + self._within

    def missing(self, requirements: Sequence[str]) -> List[_Missing]:
        """Return what is requested, and what that needs, as far as it isn't installed."""
        raise NotImplementedError

    def words(self, output: str) -> Iterator[str]:
        """Yield the lines of its output that say why it failed."""
        raise NotImplementedError

    def certificates(self) -> Dict[str, str]:
        """Return the variables that name trusted certificates, if it doesn't find them by itself."""
        return {}

    def _path(self, name: str) -> str:
        return os.path.join(self._work, name)

    def run(self, *options: str) -> str:
        """Run it; return its output, which goes to the node's log as well. Raises ``InstallError``."""
        env = {**os.environ, "PIP_USER": "0", "PYTHONUNBUFFERED": "1", **self.certificates()}
        if not os.access(os.path.expanduser("~"), os.W_OK):  # pip does without a cache
            env.setdefault("UV_CACHE_DIR", self._path("cache"))
        sys.stdout.flush()
        with subprocess.Popen(
            [*self.command, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            start_new_session=True,  # so that it can be killed with all that it started
        ) as process:
            try:
                assert process.stdout is not None
                output = self._passed_on(process.stdout.fileno())
                code = process.wait()
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        if code:
            words = list(dict.fromkeys(self.words(output))) or _last(output)
            if any(map(_FOR_OTHERS, words)):
                words.append("this node has Python %(python)s on %(platform)s" % environment.description())
            text = _SECRET.sub("//", "\n".join(words))
            raise InstallError(
                "%s couldn't install %s: %s" % (self.name, self._names, text), again=bool(_TROUBLES(text))
            )
        return output

    def _passed_on(self, pipe: int) -> str:
        """Copy what comes from a pipe to the node's log; return the end of it, without colours."""
        output = b""
        while True:
            left = self._until - time.monotonic()
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                text = output.decode(errors="replace")
                last = (
                    "; its last output: %s" % _SECRET.sub("//", " ".join(_last(text))) if text.strip() else ""
                )
                raise InstallError(
                    "%s didn't install %s within %g s (--env %s=S allows more)%s"
                    % (self.name, self._names, self._within, WITHIN, last),
                    again=True,
                )
            chunk = os.read(pipe, 1 << 16)
            if not chunk:
                return _COLOURS.sub("", output.decode(errors="replace"))
            os.write(1, chunk)
            output = (output + chunk)[-_MOST:]


def _last(output: str) -> List[str]:
    return [line.strip() for line in _COLOURS.sub("", output).splitlines() if line.strip()][-3:]


class _Pip(_Installer):
    name = "pip"

    def __init__(self, names: str, work: str) -> None:
        super().__init__(names, work)
        options = ("--no-input", "--disable-pip-version-check", "--log", self._path("log"))
        self.command = (*environment.command("pip"), "install", *options)

    def missing(self, requirements: Sequence[str]) -> List[_Missing]:
        report = self._path("report")
        self.run("--dry-run", "--report", report, "-c", self._path(_BOUNDS), "--", *requirements)
        with open(report, encoding="utf-8") as file:
            decided: List[_Missing] = []
            for item in json.load(file)["install"]:
                # pip's installation report, version 1.
                meta, source = item["metadata"], item["download_info"]
                vcs = source.get("vcs_info")
                at = "%s+%s@%s" % (vcs["vcs"], source["url"], vcs["commit_id"]) if vcs else source["url"]
                if source.get("subdirectory"):  # which the URL lacks
                    at += "#subdirectory=" + quote(source["subdirectory"])
                decided.append(_Missing(meta["name"], meta["version"], at if item["is_direct"] else ""))
            return decided

    def words(self, output: str) -> Iterator[str]:
        # Only its log says why nothing was found, or why a build failed.
        lines: List[str] = []
        with suppress(OSError), open(self._path("log"), encoding="utf-8", errors="replace") as file:
            lines += file
        # If pip found no wheel for this node, say for which others there are some
        match = _NO_MATCH(output)
        name, version = (match.group(1), match.group(2) or "") if match else ("", "")
        tags = [
            wheel.group(1)
            for wheel in map(_PASSED_OVER, lines)
            if wheel and environment.normalised(wheel.group(2)) == environment.normalised(name)
            if wheel.group(3).startswith(version)
        ]
        if tags:
            others = environment.in_words([*dict.fromkeys(tags)])
            yield "%s has no wheels for this node, but for %s" % (name, others)
        if "conflicting dependencies" not in output:
            reasons = [(match.group(1) or match.group(2)) for match in map(_IN_LOG, lines) if match]
            yield from (line.replace(" - skipping", "")[:_LONGEST] for line in reasons[-1:])
        conflict = False
        for line in output.splitlines():
            if line.startswith(("The conflict is caused by", "To fix this", "Additionally, some packages")):
                conflict = line.startswith("The conflict")
            elif line.startswith("ERROR: ") and "ResolutionImpossible" not in line:
                yield line[len("ERROR: ") :]
            elif line.startswith(("× ", "│ ")) and "exit code" not in line:
                yield line[2:]
            elif conflict and line.strip():
                yield line.strip()


class _Uv(_Installer):
    name = "uv"

    def certificates(self) -> Dict[str, str]:
        """Make it trust the certificates of pip, and of Python: by itself it looks at neither (0.13)."""
        if "SSL_CERT_FILE" in os.environ or "SSL_CERT_DIR" in os.environ:
            return {}
        import ssl  # late: few nodes need it

        paths = ssl.get_default_verify_paths()
        trusted = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or paths.cafile
        if trusted:
            return {"SSL_CERT_DIR" if os.path.isdir(trusted) else "SSL_CERT_FILE": trusted}
        return {"SSL_CERT_DIR": paths.capath} if paths.capath and os.listdir(paths.capath) else {}

    def missing(self, requirements: Sequence[str]) -> List[_Missing]:
        python = ("--python", sys.executable, "--break-system-packages")  # a dry run breaks nothing
        output = self.run("--dry-run", *python, "-c", self._path(_BOUNDS), "--", *requirements)
        decisions = (line.groups("") for line in _DECIDED.finditer(output))
        return [_Missing(name, version, at or of_old) for name, version, at, of_old in decisions]

    def words(self, output: str) -> Iterator[str]:
        lines = output.splitlines()
        begins = next((n for n, line in enumerate(lines) if re.match(r"\s*×|error:", line)), len(lines))
        yield from (line.strip() for line in lines[begins : begins + 20] if line.strip())


def _tool(request: Dict[str, Any], folder: str) -> Type[_Installer]:
    """Return uv if there is one, unless pip alone is configured with where packages come from."""
    pip = find_spec("pip") is not None
    told_pip = _is_configured("PIP", _PIP_FILES) and not _is_configured("UV", _UV_FILES)
    # uv looks only into the interpreter's own folder of packages: it would reinstall what an image's venv
    # gets from the system's Python, or from ``PYTHONPATH`` (0.13).
    folders = {os.path.realpath(sysconfig.get_path(name)) for name in ("purelib", "platlib")}
    unseen = (path for path in sys.path if os.path.realpath(path) not in folders)
    if pip and (told_pip or any(map(environment.distributions, unseen))):
        return _Pip
    # The command of the image's uv, or else of the one in the job's store; [] if there is none
    own = shutil.which("uv")
    if own:
        command = [own]
    elif find_spec("uv"):
        command = environment.command("uv")
    elif not request["uv"]:
        command = []
    else:
        from nbtorchjob.runtime.install import stock  # late: only the payloads of jobs with a store have it

        command = stock.uv(request["uv"], folder)
    if command:
        _Uv.command = (*command, "pip", "install", "--no-progress")
        return _Uv
    if pip:
        return _Pip
    mend = (
        "install uv"
        if request["kept"]
        else "install uv where the notebook runs and set --storage: jobs then bring it along"
    )
    raise InstallError("packages can't be installed: %s has neither pip nor uv; %s" % (sys.executable, mend))


def _is_configured(prefix: str, files: Sequence[str]) -> bool:
    names = re.compile(prefix + r"_(?:\w*INDEX\w*|FIND_LINKS|CONFIG_FILE|\w*CERT|PROXY|TRUSTED_HOST)$")
    paths = (os.path.join(sys.prefix, os.path.basename(files[0])), *map(os.path.expanduser, files))
    return any(map(names.match, os.environ)) or any(map(os.path.exists, paths))
