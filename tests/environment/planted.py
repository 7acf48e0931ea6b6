"""The ways in which an image may differ from here, planted into folders."""

import platform
import re
from importlib.machinery import EXTENSION_SUFFIXES
from typing import Any

from nbtorchjob.environment.images import COMPATIBLE, DIFFERS, LACKS, SAME
from tests.environment.installed import install

MINE = ("mine", "1.2.0", "mine/__init__.py")
SUFFIX = EXTENSION_SUFFIXES[0]
_EGG = re.compile(r"(\w+)-([\d.]+\d)\b.*\.egg-info").match


def file(folder, name, text=""):
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def plant(folder, *contents):
    """Fill a folder with these distributions, each as ``install`` takes it, or with plain files."""
    for path in contents:
        if not isinstance(path, str):
            install(folder, *path)
        elif named := _EGG(path):
            file(folder, path, f"Metadata-Version: 1.0\nName: {named[1]}\nVersion: {named[2]}\n")
        else:
            file(folder, path)


def apart():
    """Yield each case's name, its packages here, its packages there, and its module, all by unique names.

    So one folder can hold all packages here, and one all packages there. Those here can be imported.
    """
    for number, (case, (kernel_packages, packages, module, *_)) in enumerate(PLANTED.items()):

        def own(text, number=number):
            return re.sub("mine|other|more|space", rf"\g<0>{number}", text)

        kernel_contents = [
            tuple(own(text.replace(SUFFIX, ".py")) for text in texts) for texts in kernel_packages
        ]
        target_contents = [own(text) if isinstance(text, str) else tuple(map(own, text)) for text in packages]
        yield case, kernel_contents, target_contents, own(module)


# Packages here, packages there, imported module; verdict with the version there; whether node and we refuse.
BOTH, NODE, NOBODY = (True, True), (True, False), (False, False)
PLANTED: dict[str, tuple[Any, ...]] = {
    "the same": ([MINE], [MINE], "mine", (SAME, "1.2.0"), NOBODY),
    "missing": ([MINE], [], "mine", (LACKS, ""), BOTH),
    "missing, imported by its part": ([MINE], [], "mine.deep.part", (LACKS, ""), BOTH),
    "missing, by another name than its module's": (
        [("py-mine", "1.0", "mine.py")],
        [],
        "mine",
        (LACKS, ""),
        BOTH,
    ),
    "older": ([MINE], [("mine", "1.1.9", MINE[2])], "mine", (DIFFERS, "1.1.9"), NOBODY),
    "newer": ([MINE], [("mine", "2.0", MINE[2])], "mine", (DIFFERS, "2.0"), NOBODY),
    "a patch older": ([MINE], [("mine", "1.2.7", MINE[2])], "mine", (COMPATIBLE, "1.2.7"), NOBODY),
    "another build": (
        [("mine", "1.2.0+cpu", MINE[2])],
        [("mine", "1.2.0+cu126", MINE[2])],
        "mine",
        (COMPATIBLE, "1.2.0+cu126"),
        NOBODY,
    ),
    "before the release": ([MINE], [("mine", "1.2.0rc1", MINE[2])], "mine", (DIFFERS, "1.2.0rc1"), NOBODY),
    "of a nightly": ([MINE], [("mine", "1.2.0.dev9", MINE[2])], "mine", (DIFFERS, "1.2.0.dev9"), NOBODY),
    "one number only": (
        [("mine", "2024a", MINE[2])],
        [("mine", "2024b", MINE[2])],
        "mine",
        (DIFFERS, "2024b"),
        NOBODY,
    ),
    "extra": ([MINE], [MINE, ("more", "1.0", "more.py")], "mine", (SAME, "1.2.0"), NOBODY),
    "renamed": (
        [MINE],
        [("mine-headless", "1.2.0", MINE[2])],
        "mine",
        (DIFFERS, "another's"),
        NOBODY,
    ),
    "its name spelled otherwise": (
        [("My.Own_mine", "1.0", "mine.py")],
        [("my-own-mine", "1.0", "mine.py")],
        "mine",
        (SAME, "1.0"),
        NOBODY,
    ),
    "of no distribution": ([MINE], ["mine/__init__.py"], "mine", (DIFFERS, "another's"), NOBODY),
    "a namespace that isn't there": (
        [("space-mine", "1.0", "space/mine/__init__.py")],
        [],
        "space.mine",
        (LACKS, ""),
        BOTH,
    ),
    "a namespace of others": (
        [("space-mine", "1.0", "space/mine/__init__.py")],
        [("space-other", "1.0", "space/other.py")],
        "space.mine",
        (LACKS, ""),
        NODE,
    ),
    "a namespace in another version": (
        [("space-mine", "1.0", "space/inner/mine.py"), ("space-other", "1.0", "space/inner/other.py")],
        [("space-mine", "3.0", "space/inner/mine.py")],
        "space.inner.mine.more",
        (DIFFERS, "3.0"),
        NOBODY,
    ),
    "a module of another Python": (
        [("mine", "1.0", f"mine{SUFFIX}")],
        [("mine", "1.0", "mine.cpython-37m-x86_64-linux-gnu.so")],
        "mine",
        (SAME, "1.0"),
        NODE,
    ),
    "a module of another architecture": (
        [("mine", "1.0", f"mine{SUFFIX}")],
        [("mine", "1.0", f"mine{SUFFIX.replace(platform.machine(), 's390x')}")],
        "mine",
        (SAME, "1.0"),
        NODE,
    ),
    "its metadata alone": ([MINE], [("mine", "1.2.0")], "mine", (SAME, "1.2.0"), NODE),
    "half removed by pip": ([MINE], ["~ine-1.2.0.dist-info/METADATA"], "mine", (LACKS, ""), BOTH),
    "a file of Debian's": (
        [MINE],
        ["mine/__init__.py", "mine-1.2.0.egg-info"],
        "mine",
        (SAME, "1.2.0"),
        NOBODY,
    ),
    "an older archive's": (
        [MINE],
        ["mine/__init__.py", "mine-1.1.0-py3.11.egg-info/PKG-INFO"],
        "mine",
        (DIFFERS, "1.1.0"),
        NOBODY,
    ),
    "compiled only": (
        [("mine", "1.0", "mine.py")],
        [("mine", "1.0", "mine.pyc")],
        "mine",
        (SAME, "1.0"),
        NOBODY,
    ),
    "a folder of its name": ([MINE], ["mine/data.txt"], "mine", (DIFFERS, "another's"), NOBODY),
}
