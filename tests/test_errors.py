"""The tree of exceptions: drawn as it is, and named alike everywhere."""

import ast
import pickle
import re
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

import nbtorchjob
from nbtorchjob import errors
from nbtorchjob.errors import NotInstalledError

PACKAGE = Path(nbtorchjob.__file__).parent
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]


def test_the_tree_is_drawn_as_it_is():
    drawn = re.findall(r"^    (?:[│ ]*[├└]── )?(\w+Error)", errors.__doc__, re.MULTILINE)

    assert sorted(drawn) == sorted(kind.__name__ for kind in KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_nbtorchjob_raises_is_one_kind(kind):
    assert issubclass(kind, errors.NBTorchJobError)


def test_every_exception_is_called_an_error():
    """Except for an interrupt, which isn't one, and for code on ranks, which keeps torch's names."""
    kinds = {}
    for path in PACKAGE.rglob("*.py"):
        if "runtime" in path.relative_to(PACKAGE).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                kinds[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    raised = {name for name, bases in kinds.items() if any(re.search("(Error|Exception)$", b) for b in bases)}

    assert {name for name in raised if not name.endswith("Error")} == set()


@pytest.mark.parametrize(
    "error",
    [
        errors.ForbiddenError("no", status=403, reason="Forbidden", said="no!", grant="kind: Role"),
        errors.UnreachableError("no answer"),
        errors.AlreadyExistsError("there"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_a_cluster_travels_between_processes(error):
    again = pickle.loads(pickle.dumps(error))

    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


class Plain(LookupError):
    """An exception of a module that is loaded."""


class Odd(Exception):
    """An exception with an attribute that handlers expect, and that no text gives."""

    def __init__(self, code):
        super().__init__(code)
        self.code = code


class Slotted(Exception):
    __slots__ = ("code",)


class Meta(type):
    pass


class Made(Exception, metaclass=Meta):
    pass


HERE = f"{__name__}."


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ValueError", ValueError),
        ("KeyError", KeyError),
        ("OSError", OSError),
        ("FileNotFoundError", FileNotFoundError),
        (f"{HERE}Plain", Plain),
        ("json.JSONDecodeError", None),
        ("json.decoder.JSONDecodeError", None),
        ("nowhere.Error", None),
        ("Exception", None),
        ("TimeoutError", None),
        ("SyntaxError", None),
        ("StopIteration", None),
        ("UnicodeDecodeError", None),
        ("ExceptionGroup", None),
        ("KeyboardInterrupt", None),
        ("SystemExit", None),
        ("int", None),
        ("nbtorchjob.errors.JobCancelledError", None),
        *((f"{HERE}{odd}", None) for odd in ("Odd", "Slotted", "Made", "HERE", "nowhere")),
    ],
)
def test_a_failure_is_also_of_the_type_that_a_rank_raised_where_that_is_safe(name, kind):
    error = errors.failed("train failed\nboom", name)
    again = pickle.loads(pickle.dumps(error))

    assert isinstance(error, errors.JobFailedError)
    assert (kind is None) == (type(error) is errors.JobFailedError)
    assert kind is None or isinstance(error, kind)
    assert kind is None or isinstance(again, kind)
    assert str(again) == str(error) == "train failed\nboom"
    assert error._render_traceback_() == ["train failed\nboom"]


@pytest.mark.parametrize("shape", errors.Shape, ids=lambda shape: shape.name)
def test_a_wrong_value_is_told_in_each_shape_and_travels(shape):
    error = errors.SpecError("--nnodes", "{0}", "1 or {more}", shape)
    again = pickle.loads(pickle.dumps(error))

    assert (error.field, error.value, error.allowed) == ("--nnodes", "{0}", "1 or {more}")
    assert str(error).endswith(error.problem)
    assert (str(again), vars(again)) == (str(error), vars(error))
    assert str(error.about("nnodes")) == str(error).replace("--nnodes", "nnodes")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.SpecError("gpu", "many", "a whole number"), "gpu: got 'many', but it must be a whole number"),
        (errors.SpecError("--gpu", None, "N", errors.Shape.NO_VALUE), "--gpu expects a value: N"),
        (errors.SpecError("--image", None, "one", errors.Shape.MISSING), "--image is required: one"),
        (errors.SpecError("a", 1, "beside b", errors.Shape.CONFLICT), "a can't be given beside b"),
        (errors.SpecError("option", "--n", "see b", errors.Shape.UNKNOWN), "unknown option --n; see b"),
        (errors.SpecError("option", "--n\nm", "b", errors.Shape.UNKNOWN), "unknown option '--n\\nm'; b"),
        (
            errors.SpecError("/f.toml", "n", "see b", errors.Shape.UNKNOWN_KEY),
            "/f.toml: unknown option n; see b",
        ),
        (errors.SpecError("argument", "n", "b", errors.Shape.UNEXPECTED), "unexpected argument 'n': b"),
    ],
)
def test_a_wrong_value_is_told_in_a_sentence(error, message):
    assert str(error) == message


def test_an_error_is_a_line_where_the_shell_wants_that(monkeypatch):
    shell = SimpleNamespace(InteractiveTB=SimpleNamespace(mode="Minimal"))
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)

    assert errors.failed("train failed\nboom\nmore")._render_traceback_() == ["train failed: boom"]


@pytest.fixture
def installed(monkeypatch):
    """Return a mapping that replaces the versions of the installed packages."""
    versions: dict[str, str] = {}

    def version(name):
        try:
            return versions[name]
        except KeyError:
            raise metadata.PackageNotFoundError(name) from None

    monkeypatch.setattr(metadata, "version", version)
    return versions


def refusal(extra, by="a cluster"):
    with pytest.raises(NotInstalledError) as refused, errors.needs_extra(extra, by):
        import not_there  # type: ignore[import-not-found]  # noqa: F401
    return str(refused.value)


def test_what_an_extra_lacks_is_one_line_that_names_it(installed):
    message = (
        "a cluster needs fsspec>=2024.6 and h2>=4.1 and kubernetes>=37: pip install 'nbtorchjob[kubernetes]'"
    )
    assert refusal("kubernetes") == message


def test_a_version_that_is_too_old_is_named_with_the_one_that_is_needed(installed):
    installed.update(kubernetes="31.0.0", fsspec="2026.9.0", h2="4.4.1")
    message = "a cluster needs kubernetes>=37 (here: 31.0.0): pip install 'nbtorchjob[kubernetes]'"
    assert refusal("kubernetes") == message


def test_where_all_of_it_is_installed_the_module_is_named(installed):
    installed.update(kubernetes="37.0.2", fsspec="2026.9.0", h2="4.4.1")
    assert refusal("kubernetes") == "a cluster needs not_there: pip install 'nbtorchjob[kubernetes]'"
