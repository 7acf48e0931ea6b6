import errno
import importlib
import os
import site
import sys
import threading
import types
from pathlib import Path

import pytest

from nbtorchjob import capture
from nbtorchjob.capture import from_cell, identity, modules
from nbtorchjob.errors import CaptureError


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Yield an importable notebook folder; drop its modules from ``sys.modules`` afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def put(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def paths(names, root):
    return [file.path for file in modules.local_files(names, root)]


def test_a_module_beside_the_notebook_travels(root):
    put(root, {"mine_a.py": "A = 1", "other_a.py": ""})
    assert modules.local_files(["mine_a", "json", "numpy"], root) == (
        modules.LocalFile("mine_a.py", b"A = 1"),
    )


def test_a_package_brings_its_tree_without_litter(root):
    put(
        root,
        {
            "pkg_b/__init__.py": "",
            "pkg_b/sub/a.py": "",
            "pkg_b/data/words.txt": "a b",
            "pkg_b/__pycache__/a.pyc": "",
            "pkg_b/.hidden/x.py": "",
            "pkg_b/.env": "",
            "pkg_b/.defaults": "",
            "pkg_b/play.ipynb": "",
            "pkg_b/old.pyc": "",
            "pkg_b/checkpoints/last.pt": "",
            "pkg_b/node_modules/x.js": "",
        },
    )
    assert paths(["pkg_b.sub.a"], root) == [
        "pkg_b/.defaults",
        "pkg_b/__init__.py",
        "pkg_b/data/words.txt",
        "pkg_b/sub/a.py",
    ]


def test_code_that_is_linked_into_a_package_travels_with_it_and_data_stays(root):
    put(
        root,
        {
            "net_l/__init__.py": "",
            "shared/layers/__init__.py": "",
            "shared/layers/dense.py": "import other_l",
            "shared/layers/kernels/add.cu": "",
            "other_l.py": "",
            "data/images.bin": "",
        },
    )
    (root / "net_l" / "layers").symlink_to("../shared/layers")
    (root / "net_l" / "data").symlink_to("../data")
    (root / "shared" / "layers" / "whole").symlink_to("../../net_l")  # a cycle

    assert paths(["net_l"], root) == [
        "net_l/__init__.py",
        "net_l/layers/__init__.py",
        "net_l/layers/dense.py",
        "net_l/layers/kernels/add.cu",
        "other_l.py",
    ]


def test_a_program_of_a_package_is_told_from_one_that_can_not_be_run(root):
    put(root, {"pkg_p/__init__.py": "", "pkg_p/run.sh": "#!/bin/sh"})
    before = capture.from_cell("import pkg_p", {}, root=root)
    (root / "pkg_p" / "run.sh").chmod(0o755)
    after = capture.from_cell("import pkg_p", {}, root=root)

    assert [file.executable for file in (*before.files, *after.files)] == [False, False, False, True]
    assert identity.of(before) != identity.of(after)


def test_what_is_no_file_stays_and_keeps_nothing_else_from_travelling(root):
    put(root, {"pkg_m/__init__.py": "", "pkg_m/.#kept.py": ""})
    (root / "pkg_m" / ".#mod.py").symlink_to("me@host.4711:1760000000")  # Emacs' lock
    (root / "pkg_m" / "gone.py").symlink_to("nowhere.py")
    os.mkfifo(root / "pkg_m" / "control.py")

    assert paths(["pkg_m"], root) == ["pkg_m/__init__.py"]


def test_a_file_that_goes_before_it_is_read_stays(root):
    put(root, {"pkg_n/__init__.py": ""})
    listed = {f"pkg_n/{name}": root / "pkg_n" / name for name in ("__init__.py", "mod.py~")}

    assert modules.read(listed, root) == (modules.LocalFile("pkg_n/__init__.py", b""),)


def test_a_file_that_can_not_be_read_is_named(root, monkeypatch):
    put(root, {"pkg_o/__init__.py": "", "pkg_o/secret.py": ""})
    read = Path.read_bytes

    def refused(path):  # a mode wouldn't do: root reads every file
        if path.name == "secret.py":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refused)
    with pytest.raises(CaptureError, match=r"^pkg_o/secret\.py can't be read \(Permission denied\)$"):
        paths(["pkg_o"], root)


@pytest.mark.parametrize("made_by", ["pyvenv.cfg", "conda-meta/history"])
def test_an_environment_beside_the_notebook_stays(root, made_by):
    lib = "lib/python3.11/site-packages/other/__init__.py"
    put(
        root,
        {
            "env_f.py": "import kept_f, envs_f.tools",
            f"envs_f/new/{made_by}": "",
            f"envs_f/new/{lib}": "",
            "envs_f/new/bin/tool.py": "",
            "envs_f/tools.py": "",
            f"kept_f/{made_by}": "",
            f"kept_f/{lib}": "",
            "kept_f/bin/tool.py": "",
        },
    )
    assert paths(["env_f"], root) == ["env_f.py", "envs_f/tools.py"]


def test_what_local_modules_import_travels_too(root):
    put(
        root,
        {
            "one_c.py": "def f():\n    import two_c.deep as d",
            "two_c/__init__.py": "from . import deep",
            "two_c/deep.py": "from three_c import x\nimport one_c, os",
            "three_c.py": "x = 1",
            "broken_c.py": "def",
        },
    )
    assert paths(["one_c"], root) == ["one_c.py", "three_c.py", "two_c/__init__.py", "two_c/deep.py"]
    assert paths(["broken_c"], root) == ["broken_c.py"]


def test_a_namespace_package_travels(root):
    put(root, {"space_d/a.py": "", "space_d/b/c.py": ""})
    assert paths(["space_d.a"], root) == ["space_d/a.py", "space_d/b/c.py"]


def test_a_path_is_relative_to_where_the_module_is_imported_from(root, monkeypatch):
    put(root, {"src/pkg_e/__init__.py": ""})
    monkeypatch.syspath_prepend(root / "src")
    assert paths(["pkg_e"], root) == ["pkg_e/__init__.py"]


def test_environments_below_the_notebook_stay(root, monkeypatch):
    put(root, {"env/lib/site-packages/dep_f.py": "", ".hide/hid_f.py": "", "conda/lib/std_f.py": ""})
    for folder in ("env/lib/site-packages", ".hide", "conda/lib"):
        monkeypatch.syspath_prepend(root / folder)
    monkeypatch.setattr(sys, "prefix", str(root / "conda"))  # as if this Python were there
    assert paths(["dep_f", "hid_f", "std_f"], root) == []


def test_modules_that_are_nowhere_or_python_itself_stay(root):
    assert paths(["missing_g", "sys", "__main__"], root) == []


def test_a_module_made_by_hand_stays(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "made_h", type(sys)("made_h"))
    assert paths(["made_h"], root) == []


def test_nbtorchjob_itself_stays_even_where_it_is_edited():
    assert paths(["nbtorchjob.capture"], Path(modules.__file__).parent.parent) == []


def test_too_much_is_refused_by_the_biggest_files(root):
    put(root, {"pkg_i/__init__.py": "", "pkg_i/small.bin": "abc"})
    for name, size in {"big": 20_000_000, "huge": 30_000_000}.items():
        with (root / "pkg_i" / f"{name}.bin").open("wb") as file:
            file.truncate(size)
    with pytest.raises(CaptureError) as caught:
        modules.local_files(["pkg_i"], root)
    assert str(caught.value) == (
        "the local modules are 50 MB, but at most 32 MB can go along; the biggest files are "
        "pkg_i/huge.bin (30 MB), pkg_i/big.bin (20 MB), pkg_i/small.bin (3 B): move data out of "
        "the packages"
    )


def test_a_module_from_elsewhere_on_the_path_travels_unless_it_is_installed_or_too_big(root, monkeypatch):
    put(root, {"lib/mine_k.py": "", "lib/big_k.py": "", "site-packages/theirs_k.py": "", "notebook/x.py": ""})
    put(root, {"target/a.dist-info/x": "", "target/theirs_l.py": ""})
    for folder in ("lib", "site-packages", "target"):
        monkeypatch.syspath_prepend(root / folder)
    with (root / "lib/big_k.py").open("ab") as file:
        file.truncate(modules.LIMIT + 1)
    files, notes = modules.local_paths(["mine_k", "big_k", "theirs_k", "theirs_l"], root / "notebook")
    assert sorted(files) == ["mine_k.py"]
    assert notes == ["big_k isn't taken along, as it is 32 MB: ranks on a cluster need it installed"]


def test_a_module_in_a_folder_below_an_editable_projects_travels(root, monkeypatch):
    put(root, {"repo/lib_q.py": "", "repo/scripts/help_q.py": "", "notebook/x.py": ""})
    put(root, {"site/mine.pth": f"{root / 'repo'}\n"})
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(root / "site")])
    for folder in ("site", "repo", "repo/scripts"):
        monkeypatch.syspath_prepend(root / folder)

    assert sorted(modules.local_paths(["help_q", "lib_q"], root / "notebook")[0]) == ["help_q.py"]


def test_of_modules_from_elsewhere_that_are_too_big_together_the_biggest_stay(root, monkeypatch):
    put(root, {"lib/some_l.py": "", "lib/more_l.py": "", "notebook/own_l.py": ""})
    monkeypatch.syspath_prepend(root / "notebook")
    monkeypatch.syspath_prepend(root / "lib")
    for name, size in (("lib/some_l.py", 12), ("lib/more_l.py", 11), ("notebook/own_l.py", 10)):
        with (root / name).open("ab") as file:
            file.truncate(size * 1_000_000)
    files, notes = modules.local_paths(["some_l", "more_l", "own_l"], root / "notebook")
    assert sorted(files) == ["more_l.py", "own_l.py"]
    assert notes == ["some_l isn't taken along, as it is 12 MB: ranks on a cluster need it installed"]


def test_objects_of_a_local_module_are_not_asked_what_they_are(root):
    put(root, {"odd_c.py": HOSTILE})
    capture.from_cell("odd_c.Lying, odd_c.one", {"odd_c": importlib.import_module("odd_c")}, root=root)


def test_what_a_named_tuple_sets_is_no_difference(root):
    put(root, {"pair_c.py": "from typing import NamedTuple\nclass Pair(NamedTuple):\n    a: int = 1\n"})
    call = capture.from_cell("pair_c.Pair()", {"pair_c": importlib.import_module("pair_c")}, root=root)

    assert call.notes == ()


def test_a_registry_that_a_bases_method_copies_into_a_class_is_no_difference(root):
    text = "import yaml\nclass Loader(yaml.SafeLoader): pass\nLoader.add_constructor('!x', print)\n"
    put(root, {"yaml_c.py": text})
    module = importlib.import_module("yaml_c")

    assert capture.from_cell("yaml_c.Loader", {"yaml_c": module}, root=root).notes == ()
    module.Loader.strict = True
    assert capture.from_cell("yaml_c.Loader", {"yaml_c": module}, root=root).notes == (
        "yaml_c.Loader.strict was set here, but doesn't exist on ranks: they import yaml_c.py anew",
    )


HOSTILE = """
class Lies(type):
    def __getattribute__(cls, name):
        raise AssertionError(name)

class Lying(metaclass=Lies):
    pass

one = object.__new__(Lying)
"""


@pytest.mark.parametrize(
    "body",
    [
        "return pkgutil.resolve_name('texted_a:one')()",
        "return pydoc.locate('texted_a.one')()",
        "return [importlib.import_module(name) for name in ('json', 'texted_a')][1].one()",
        "return metadata.EntryPoint('one', 'texted_a:one', 'ones').load()()",
        "return instantiate({'_target_': 'texted_a.one', '_partial_': False})",
    ],
)
def test_a_module_that_code_names_in_a_text_travels(body, root, monkeypatch):
    imports = "import importlib, pkgutil, pydoc\nfrom importlib import metadata\n"
    put(root, {"texted_a.py": "def one(): return 1", "texted_b.py": f"{imports}def two():\n    {body}"})
    assert "texted_a.py" in paths(["texted_b"], root)
    space = {"__name__": "__main__", "instantiate": print}
    exec(f"{imports}def f():\n    {body}", space)
    monkeypatch.syspath_prepend(root)
    for cell, names in (("f()", space), (f"{imports}def g():\n    {body}\ng()", {"instantiate": print})):
        files = capture.from_cell(cell, names, root=root).files
        assert "texted_a.py" in [file.path for file in files], cell


def test_a_module_that_a_local_one_imports_by_its_name_travels(root):
    put(root, {"by_name.py": "import importlib\nimportlib.import_module('named_b').X", "named_b.py": "X = 1"})
    assert paths(["by_name"], root) == ["by_name.py", "named_b.py"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("globals()[name]", "looks up a computed name in globals()"),
        ("globals().get(name)", "looks up a computed name in globals()"),
        ("importlib.import_module(name)", "imports a module by a computed name"),
        ("__import__(name)", "imports a module by a computed name"),
        ("importlib.metadata.entry_points(group=name)", "asks for entry points"),
        ("globals()['kept']", ""),
        ("globals().get('kept', 1)", ""),
        ("importlib.import_module('json')", ""),
        ("eval('kept', globals())", ""),
    ],
)
def test_what_is_looked_up_by_a_name_that_code_computes_is_noted(body, says):
    space = {"__name__": "__main__", "kept": 3}
    exec(f"import importlib\nname = 'kept'\ndef f(name): return {body}", space)
    called, cell = from_cell("f(name)", space), from_cell(f"name\n{body}", space)
    assert [says in note for note in called.notes] == [True] * bool(says), called.notes
    assert [says in note for note in cell.notes] == [True] * bool(says), cell.notes


@pytest.mark.parametrize("cell", ["import handmade_a\nhandmade_a.twice(4)", "f()"])
def test_a_module_that_the_notebook_made_by_hand_is_imported_on_ranks(cell, ranks, monkeypatch):
    module = types.ModuleType("handmade_a")
    exec("def twice(n): return 2 * n", vars(module))
    monkeypatch.setitem(sys.modules, "handmade_a", module)
    space = {"__name__": "__main__"}
    exec("def f():\n    import handmade_a\n    return handmade_a.twice(4)", space)
    assert ranks.run(from_cell(cell, space)) == (8, "", "")


def test_a_module_made_by_hand_that_cant_travel_is_refused_by_its_name(monkeypatch):
    module = types.ModuleType("handmade_b")
    vars(module)["thread"] = threading.Thread()
    monkeypatch.setitem(sys.modules, "handmade_b", module)
    with pytest.raises(CaptureError, match=r"can't take 'handmade_b' along: handmade_b\.thread is a thread"):
        from_cell("import handmade_b", {"__name__": "__main__"})


HOLDS = """
import threading

class Logger:
    def __init__(self):
        self.lock, self.level = threading.Lock(), "INFO"

logger, other = Logger(), None
"""


def test_what_its_own_module_holds_goes_by_reference_where_it_cannot_be_pickled(root, ranks):
    put(root, {"holds_l.py": HOLDS})
    holds_l = importlib.import_module("holds_l")
    holds_l.logger.level = "DEBUG"
    space = {"__name__": "__main__", "log": holds_l.logger}
    call = from_cell("import holds_l\n[log is holds_l.logger, log.level]", space, root=root)

    assert call.notes == ("log: ranks have their own, without what was set on it here",)
    assert ranks.run(call) == ([True, "INFO"], "", "")

    space["log"] = [holds_l.logger, other := holds_l.Logger()]
    other.level = "OFF"
    call = from_cell(
        "import holds_l\nlog[0] is holds_l.logger, [logger.level for logger in log]", space, root=root
    )
    assert ranks.run(call) == ((True, ["INFO", "OFF"]), "", "")


LATER = """
import typing

last: typing.Any = None

def get():
    global last
    last = Logger()
    return last
"""


def test_what_a_module_makes_when_it_is_asked_for_it_goes_by_value(root, ranks):
    put(root, {"holds_n.py": HOLDS + LATER})
    holds_n = importlib.import_module("holds_n")
    space = {"__name__": "__main__", "logs": [holds_n.get(), holds_n.logger]}
    cell = "import holds_n\nlogs[0].level, holds_n.last, logs[1] is holds_n.logger"
    assert ranks.run(from_cell(cell, space, root=root)) == (("INFO", None, True), "", "")


WRAPS = """
class Wraps:
    def __init__(self, wrapped):
        object.__setattr__(self, "wrapped", wrapped)

    def __getattr__(self, name):
        return getattr(self.wrapped, name)

    def __setattr__(self, name, value):
        setattr(self.wrapped, name, value)
"""


def test_an_object_of_a_module_that_asks_another_for_what_it_lacks_is_made_again(root, ranks):
    put(root, {"wraps_m.py": WRAPS})
    wraps_m = importlib.import_module("wraps_m")
    space = {"__name__": "__main__", "wraps": wraps_m.Wraps([3])}
    assert ranks.run(from_cell("wraps.pop()", space, root=root)) == (3, "", "")


CONTEXT = """
from contextvars import ContextVar

request, user = ContextVar("request", default="none"), ContextVar("user")

def get():
    return request.get(), user.get("nobody")
"""


def test_a_context_variable_of_a_module_is_the_modules_there_and_its_value_stays(root, ranks):
    put(root, {"context_m.py": CONTEXT, "context_n.py": "from context_m import user\n"})
    context_m, _ = (importlib.import_module(name) for name in ("context_m", "context_n"))
    context_m.request.set("some")
    space = {"__name__": "__main__", "request": context_m.request, "user": context_m.user}
    exec("from context_m import get\ndef f():\n    user.set('me')\n    return request, user", space)
    call = from_cell("import context_m\nf() == (context_m.request, context_m.user), get()", space, root=root)

    assert call.notes == ("request: ranks have their own, without what was set on it here",)
    assert ranks.run(call) == ((True, ("none", "me")), "", "")


def test_what_its_own_module_holds_goes_by_value_where_it_can(root, ranks):
    put(root, {"holds_m.py": HOLDS.replace("threading.Lock()", "None")})
    holds_m = importlib.import_module("holds_m")
    holds_m.logger.level = "DEBUG"
    space = {"__name__": "__main__", "log": holds_m.logger}
    call = from_cell("log.level", space, root=root)

    assert ranks.run(call) == ("DEBUG", "", "")
