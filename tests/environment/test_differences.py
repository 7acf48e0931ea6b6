"""Each way in which an image may differ from here: the message about it, and whether a call may run there."""

import importlib
import os
import sys
from dataclasses import replace

import pytest

from nbtorchjob.backends.kubernetes.template import requested_images
from nbtorchjob.capture.modules import Imports, needs
from nbtorchjob.environment import images, interpreter
from nbtorchjob.environment.images import DIFFERS, PINNED, JobImage
from nbtorchjob.runtime.install import environment
from nbtorchjob.runtime.store.payload import PayloadError
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state.facts.events import EnvironmentTold
from tests.environment.installed import install
from tests.environment.planted import MINE, PLANTED, file, plant


@pytest.fixture
def standing(tmp_path, monkeypatch):
    """Return a function that fills a folder and makes it importable in place of the last one."""
    path = [*sys.path]

    def stand(name, *contents):
        folder = tmp_path / name
        folder.mkdir()
        plant(folder, *contents)
        monkeypatch.setattr(sys, "path", [str(folder), *path])
        importlib.invalidate_caches()
        return folder

    return stand


def told(name="image"):
    """Return this interpreter's description as that of an image, stored and loaded again."""
    fact = EnvironmentTold(1.0, 0, **environment.description())
    images.learn(JobImage("", name), f"sha256:{name}", fact)
    contents = images.contents_of(JobImage("", name))
    assert contents is not None
    return contents.environment


def refused(differences):
    """Return whether a node refuses to run a call that needs these, with the expected message."""
    try:
        environment.check_modules(
            [vars(difference) | {"mend": difference.mend} for difference in differences if difference.surely]
        )
    except PayloadError as exc:
        (missing,) = differences
        text = f"this image lacks {missing.distribution} {missing.version}, which the call imports: "
        text += f"add {missing.mend}, "
        return str(exc) == f"{text}or use an image that has it"
    return False


@pytest.mark.parametrize(("mine", "packages", "module", "verdict", "refuses"), PLANTED.values(), ids=PLANTED)
def test_each_difference_is_named(mine, packages, module, verdict, refuses, standing):
    standing("here", *mine)
    differences, own = needs(Imports(frozenset([module])), ()), interpreter.environment()
    assert len(differences) == 1
    standing("there", *packages)

    (row,) = images.compared(differences, own, told()).rows

    assert (row.verdict, row.image_version) == verdict
    refusal = images.compared(differences, own, told()).refusal("it", strict=False)
    assert (refused(differences), bool(refusal)) == refuses
    assert not refusal or refusal.startswith(
        f"it lacks {differences[0].distribution} {differences[0].version}, which the call"
    )


def test_an_editable_installation_is_mended_by_its_project(standing, tmp_path):
    folder = standing("here", "__editable__.mine-0.1.pth")
    install(folder, "mine", "0.1", url=f"file://{tmp_path}/project", dir_info={"editable": True})
    file(tmp_path / "project", "mine/__init__.py")
    sys.path.append(str(tmp_path / "project"))  # as site does with the paths in a .pth file
    differences, own = needs(Imports(frozenset(["mine"])), ()), interpreter.environment()
    assert [difference.mend for difference in differences] == [f"--package {tmp_path}/project"]
    standing("there")

    assert "mine 0.1" in images.compared(differences, own, told()).refusal("it", strict=False)
    assert refused(differences)


def test_the_first_of_two_folders_counts_there(standing, tmp_path):
    standing("here", MINE)
    differences, own = needs(Imports(frozenset(["mine"])), ()), interpreter.environment()
    standing("there", ("mine", "1.0", MINE[2]))
    install(tmp_path / "behind", *MINE)
    sys.path.append(str(tmp_path / "behind"))

    assert images.compared(differences, own, told()).line == "has mine 1.0 (here 1.2.0)"


def test_a_line_names_all_and_strict_refuses_what_differs(standing):
    standing("here", MINE, ("a", "1.0", "a.py"), ("b", "1.0", "b.py"), ("c", "1.0", "c.py"))
    differences, own = (
        needs(Imports(frozenset(["mine"]), frozenset(["a", "b", "c"])), ()),
        interpreter.environment(),
    )
    standing("there", ("mine", "2.0", MINE[2]), ("c", "1.1", "c.py"))
    target = told()

    compared = images.compared(differences, own, target)
    assert compared.line == "lacks a 1.0 and b 1.0 and has c 1.1 (here 1.0) and mine 2.0 (here 1.2.0)"
    assert compared.refusal("it", strict=False) == ""
    assert compared.refusal("it", strict=True).startswith(
        "it lacks a 1.0 and b 1.0, which the call imports: add"
    )

    pinned = images.compared(differences, own, target, ("a", "B>=1", "C @ https://example.com/c.whl"))
    assert [row.verdict for row in pinned.rows] == [PINNED, PINNED, PINNED, DIFFERS]
    assert pinned.line == "has mine 2.0 (here 1.2.0)"
    assert pinned.refusal("it", strict=True) == (
        "it has mine 2.0 (here 1.2.0), and --strict is given: "
        "add --package mine==1.2.0, or use an image that has the same"
    )
    assert compared.table()[:2] == [
        ("module", "distribution", "here", "there", "verdict"),
        ("a", "a", "1.0", "", "lacks"),
    ]


def test_of_many_that_are_lacking_some_are_named():
    differences = [
        {"module": f"m{n}", "distribution": f"d{n}", "version": "1", "mend": f"-p {n}"} for n in range(9)
    ]

    assert environment.refusal("it", differences) == (
        "it lacks d0 1, d1 1, d2 1, d3 1, d4 1 and 4 others, which the call imports: "
        "add --package like-here, or use an image that has them"
    )
    assert "d3 1, d4 1 and d5 1, which the call imports: add -p 0 -p 1" in environment.refusal(
        "it", differences[:6]
    )


def test_of_many_that_differ_strict_proposes_one_option(standing):
    names = [f"many{n}" for n in range(7)]
    standing("here", *((name, "1.0", f"{name}.py") for name in names))
    differences, own = needs(Imports(frozenset(names)), ()), interpreter.environment()
    standing("there", *((name, "2.0", f"{name}.py") for name in names))

    refusal = images.compared(differences, own, told()).refusal("it", strict=True)

    assert refusal.endswith("--strict is given: add --package like-here, or use an image that has the same")


def test_strict_nodes_refuse_another_version_but_not_what_was_installed_as_asked(standing, tmp_path):
    standing("here", MINE, ("a", "1.0.3", "a.py"))
    differences = needs(Imports(frozenset(["mine", "a"])), ())
    records = [vars(difference) | {"mend": difference.mend} for difference in differences]
    folder = standing("there", ("mine", "2.0", MINE[2]), ("a", "1.0.9", "a.py"))

    with pytest.raises(
        PayloadError, match=r"this image has mine 2\.0 and lacks mine 1\.2\.0, .* mine==1\.2\.0"
    ):
        environment.check_versions(records, str(tmp_path / "packages"))
    environment.check_versions(records, str(folder))


def test_what_a_job_sets_for_python_makes_another_case():
    spec = JobSpec(backend="kubernetes", cluster=Cluster(image="train:1"))
    (image,) = requested_images(spec)

    for same in (replace(spec, env={"LR": "1"}), replace(spec, launch=Elastic(2, 8))):
        assert requested_images(same) == [image] == [JobImage("", "train:1")]
    mounted = replace(spec.cluster, mount=["type=volume,src=libs,dst=/opt/libs"])
    for other in (replace(spec, env={"PYTHONPATH": "/opt/libs"}), replace(spec, cluster=mounted)):
        assert requested_images(other) != [image]
    # A runtime's image is known by the runtime's name.
    own = [
        requested_images(JobSpec(backend="kubernetes", cluster=Cluster(runtime=name)))
        for name in ("a", "b", None)
    ]
    assert len({difference.image for (difference,) in own}) == 3


def test_another_python_is_refused_where_it_cant_compile_the_code():
    own = interpreter.environment()

    def compared(python):
        return images.compared(
            (), own, interpreter.Environment(python, "x86_64 glibc 2.31", own.distributions)
        )

    assert compared("3.99.1").line == f"has Python 3.99 (here {own.minor})"
    assert compared("3.99.1").refusal("it", strict=False) == ""
    assert compared("3.99.1").refusal("it", strict=False, uncompilable="f isn't {}'s".format) == (
        f"it has Python 3.99.1 and this kernel {own.python}, and f isn't 3.99's: "
        f"use an image with Python {own.minor}"
    )
    refusal = compared("3.7.4").refusal("it", strict=False)
    assert refusal == "it has Python 3.7.4: use one with Python 3.8 or later"


@pytest.mark.parametrize(
    ("versions", "packages", "reason"),
    [
        ({}, (), "it has no torch; use one with torch 2."),
        ({"torch": "2.3.1+cu121"}, (), "it has torch 2.3.1+cu121; nbtorchjob needs 2."),
        ({"torch": "99.0"}, (), ""),
        ({"torch": "nightly"}, (), ""),
        ({}, ("torch==2.13.0",), ""),
    ],
)
def test_a_torch_that_will_not_do_is_refused_and_never_proposed(versions, packages, reason):
    own = interpreter.environment()
    differences = needs(Imports(frozenset(["torch"])), ())

    compared = images.compared(differences, own, replace(own, distributions=versions, modules=()), packages)

    refusal = compared.refusal("it", strict=False)
    assert refusal.startswith(reason)
    assert bool(refusal) is bool(reason)
    assert "--package" not in refusal


@pytest.mark.parametrize(
    ("here_is", "there_is", "text"),
    [
        ("2.13.0+cu130", "2.13.0+cpu", "has torch 2.13.0+cpu, which uses no GPU"),
        (
            "2.13.0+cu130",
            "2.13.0+cu126",
            "has torch 2.13.0+cu126 (here 2.13.0+cu130): code built for one CUDA",
        ),
        ("2.13.0+cu130", "2.13.1+cu130", ""),
        ("2.13.0+cpu", "2.13.0+cu126", ""),
        ("2.13.0", "2.13.0+cu126", ""),
    ],
)
def test_another_cuda_is_named_where_builds_tell(here_is, there_is, text):
    own, target = (interpreter.Environment("3.11.7", "", {"torch": torch}) for torch in (here_is, there_is))

    cuda = images.compared((), own, target).cuda

    assert cuda.startswith(text)
    assert bool(cuda) is bool(text)


def test_another_machine_is_named():
    own = interpreter.environment()
    target = interpreter.Environment(own.python, "sparc64 glibc 2.31", own.distributions)

    compared = images.compared((), own, target)

    assert compared.line == f"has sparc64 (here {own.machine})"
    assert compared.refusal("it", strict=False) == ""


def test_what_is_not_known_is_not_refused():
    differences = needs(Imports(frozenset(["yaml"])), ())

    unknown = images.compared(differences, interpreter.environment(), None)

    assert unknown.refusal("it", strict=True) == unknown.line == ""
    assert [row.verdict for row in unknown.rows] == ["?"]


def test_what_a_node_tells_reaches_no_terminal_as_more_than_text():
    fact = EnvironmentTold(1.0, 0, "3\x1b[1m", "x", {"a\x1b": "1", "b": "2\n3", "good": "1.0"}, ("\x9b",))
    images.learn(JobImage("", "hostile"), "", fact)

    contents = images.contents_of(JobImage("", "hostile"))

    assert contents is not None
    assert contents.environment == interpreter.Environment("", "x", {"good": "1.0"})


def test_what_no_job_has_run_for_long_is_forgotten(state_dir):
    told("old")
    for path in (state_dir / "images").iterdir():
        os.utime(path, (1.0, 1.0))
    assert images.contents_of(JobImage("", "old")) is not None

    told("new")

    assert images.contents_of(JobImage("", "old")) is None
    assert images.contents_of(JobImage("", "new")) is not None


def test_a_damaged_record_is_none(state_dir):
    assert images.contents_of(JobImage("", "never seen")) is None
    told("damaged")
    assert images.contents_of(JobImage("elsewhere", "damaged")) is None
    assert images.contents_of(JobImage("", "damaged", "with a mount")) is None
    for path in (state_dir / "images").iterdir():
        path.write_text('{"digest": 7, "told": "x"')
    assert images.contents_of(JobImage("", "damaged")) is None
