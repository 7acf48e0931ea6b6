"""The panel through its own inputs and buttons, without a browser."""

import re
import sys
import threading
from importlib.metadata import version
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from nbtorchjob import ConfigPanel
from nbtorchjob.backends.base import Choice
from nbtorchjob.backends.kubernetes.backend import KubernetesBackend
from nbtorchjob.commands import front, verbs
from nbtorchjob.environment import images
from nbtorchjob.environment.images import HEAD, JobImage
from nbtorchjob.errors import NBTorchJobError
from nbtorchjob.frontends.panel.actions import Latest
from nbtorchjob.spec import profiles
from nbtorchjob.spec.cluster import Cluster
from nbtorchjob.spec.config import Elastic, PyTorch, Unsaid, Worker
from nbtorchjob.spec.jobspec import JobSpec
from nbtorchjob.state import Phase
from nbtorchjob.state.facts.events import EnvironmentTold
from tests.backends.kubernetes.stage import until
from tests.frontends.notebook.test_kernel import started
from tests.patience import LIMIT

HOSTILE = "<img src=x onerror=alert(1)>"
PAIR = JobSpec(Elastic("1:2", 2), env={"A": "1"})


class Screen:
    """A panel as a user finds it."""

    def __init__(self, *args):
        self.panel = ConfigPanel(*args)

    def _walk(self, widget, above=()):
        yield widget, above
        for child in getattr(widget, "children", ()):
            yield from self._walk(child, (*above, widget))

    def _find(self, name):
        rows = list(self._walk(self.panel.widget))
        return next(row for row in rows if getattr(row[0], "description", None) == name)

    def __getitem__(self, name):
        return self._find(name)[0]

    def type(self, name, value):
        self[name].value = value

    def click(self, name):
        self[name].click()

    def shows(self, name):
        try:
            widget, above = self._find(name)
        except StopIteration:
            return False
        return all(part.layout.display != "none" for part in (widget, *above))

    def error(self, name):
        """Return the error shown in the field of that input, as HTML."""
        _, above = self._find(name)
        (field,) = [part for part in above if "nbtorchjob-field" in part._dom_classes]
        wrong, _, help = field.children[-1].value.partition('<div class="nbtorchjob-help">')
        assert help
        return wrong

    def html(self, within, cls):
        return next(part.value for part, _ in self._walk(within) if cls in part._dom_classes)

    def fold(self, title):
        parts = [part for part, _ in self._walk(self.panel.widget) if "nbtorchjob-fold" in part._dom_classes]
        (button,) = [part for part in parts if part.description[2:].startswith(title)]
        return button

    def open(self, title):
        """Open a section of the advanced options."""
        if self.fold("Advanced").description.startswith("\u25b8"):
            self.fold("Advanced").click()
        self.fold(title).click()

    @property
    def texts(self):
        """The texts to copy: the line, the call, the manifests."""
        return [
            part.value for part, _ in self._walk(self.panel.widget) if "nbtorchjob-text" in part._dom_classes
        ]

    @property
    def image(self):
        """The panel's view of the image, as HTML."""
        return self.html(self.panel.widget, "nbtorchjob-image")

    @property
    def cells(self):
        """The rows of the table in the image's view."""
        rows = re.findall(r"<tr>(.*?)</tr>", self.image)
        return [tuple(re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)) for row in rows]

    @property
    def status(self):
        return self.html(self.panel.widget, "nbtorchjob-status")

    @property
    def output(self):
        parts = [part for part, _ in self._walk(self.panel.widget) if hasattr(part, "outputs")]
        return parts[0].outputs

    @property
    def said(self):
        return "".join(part.get("text", "") for part in self.output)


@pytest.fixture(autouse=True)
def own_session():
    """Leave the next test the default profile, and no job."""
    yield
    front.end()


@pytest.fixture
def screen():
    return Screen(PAIR)


@pytest.fixture
def cell(tmp_path, monkeypatch):
    """Yield a function that runs a cell of a notebook."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the shell puts its own there
    config = Config()
    config.HistoryManager.enabled = False
    shell = InteractiveShell.instance(config=config)
    yield lambda text: shell.run_cell(text, store_history=True).raise_error()
    InteractiveShell.clear_instance()


def test_it_shows_a_spec_and_makes_it_the_default_of_the_session(screen):
    assert screen.panel.spec == PAIR
    assert (screen["nnodes"].value, screen["nproc-per-node"].value) == ("1:2", "2")
    assert verbs.parse("")[0] == PAIR
    assert verbs.parse("--nnodes 3")[0] == JobSpec(Elastic(3, 2), env={"A": "1"})
    assert "uses these settings" in screen.status


def test_without_a_spec_it_shows_what_the_session_uses(monkeypatch):
    monkeypatch.setenv("NBTORCHJOB_NNODES", "3")
    assert ConfigPanel().spec == JobSpec(Elastic(3))

    ConfigPanel(Elastic(4))
    assert ConfigPanel().spec == JobSpec(Elastic(4))


LAB = """\
default = "lab"
[profiles.lab]
backend = "kubernetes"
pool = "warm"
idle = "30m"  # GPUs are scarce
name = "My Job"
env = {HF_TOKEN = "abc", MODE = "fast"}
"""


def test_to_open_it_changes_nothing_of_what_jobs_and_labs_get():
    Path("nbtorchjob.toml").write_text(LAB)
    before = [verbs.parse(line)[0] for line in ("", "--keep gpu")]

    screen = Screen()

    after = job, lab = [verbs.parse(line)[0] for line in ("", "--keep gpu")]
    assert after == before
    assert isinstance(job.launch, Elastic)
    assert isinstance(job.launch.nnodes, Unsaid)
    assert (job.title, lab.idle, lab.secrets()) == ("My Job", 1800, {"HF_TOKEN": "abc"})
    assert not any("abc" in text for text in screen.texts)


def test_a_change_is_a_new_spec_and_new_words_for_it(screen):
    screen.open("Launch")
    screen.type("max-restarts", "3")

    assert screen.panel.spec == JobSpec(Elastic("1:2", 2, max_restarts=3), env={"A": "1"})
    assert verbs.parse("")[0] == screen.panel.spec
    line, call = screen.texts
    assert "--nnodes 1:2 --nproc-per-node 2 --max-restarts 3 --env A=1" in line
    assert "max_restarts=3" in call


def test_a_wrong_entry_is_told_beside_it_and_can_not_be_run(screen):
    screen.open("Launch")
    screen.type("max-restarts", "many")

    assert "must be a whole number" in screen.error("max-restarts")
    assert screen.panel.spec is None
    assert all(screen[name].disabled for name in ("Run", "Dry run", "Doctor"))
    assert "1 invalid setting: max-restarts" in screen.status
    assert all(screen.fold(title).description.endswith("1 wrong") for title in ("Advanced", "Launch"))
    assert verbs.parse("")[0] == PAIR

    screen.type("max-restarts", "1")

    assert screen.error("max-restarts") == ""
    assert not screen["Run"].disabled
    assert screen.panel.spec is not None


def test_the_launch_decides_which_fields_there_are(screen):
    assert screen.shows("nnodes")
    assert not screen.shows("worker-replicas")

    screen.open("Launch")
    screen.type("launch", "PyTorch")
    screen.type("worker-replicas", "2")

    assert screen.shows("worker-replicas")
    assert not screen.shows("nnodes")
    assert screen.panel.spec == JobSpec(PyTorch(worker=Worker(2)), env={"A": "1"})


def test_the_slider_and_the_text_say_the_same_nodes(screen):
    slider = screen["fewest and most nodes"]
    assert slider.value == (1, 2)

    slider.value = (2, 4)
    assert screen["nnodes"].value == "2:4"
    slider.value = (4, 4)
    assert screen["nnodes"].value == "4"
    screen.type("nnodes", "8:100")
    assert slider.value == (8, 100)
    screen.type("nnodes", "x")
    assert slider.value == (8, 100)
    assert "must be" in screen.error("nnodes")


def test_rows_are_added_and_removed(screen):
    screen.open("Code")
    screen.click("Remove")
    assert screen.panel.spec == JobSpec(Elastic("1:2", 2))

    screen.click("Add")
    screen.type("env", "B=2")
    assert screen.panel.spec == JobSpec(Elastic("1:2", 2), env={"B": "2"})


def test_a_section_opens_and_closes_by_its_title(screen):
    assert not screen.shows("retries")
    screen.open("Retries")
    assert screen.shows("retries")
    screen.fold("Retries").click()
    assert not screen.shows("retries")


def test_what_a_section_holds_counts_without_its_being_opened():
    screen = Screen(JobSpec(Elastic("1:2"), "kubernetes", cluster=Cluster(kind="trainjob", image="torch:1")))

    assert "must be a fixed number" in screen.error("nnodes")
    screen.type("nnodes", "2")
    assert screen.panel.spec is not None
    screen.type("backend", "local")
    assert screen.panel.spec == JobSpec(Elastic(2))
    screen.type("backend", "kubernetes")
    screen.open("Place")
    assert (screen["image"].value, screen["kind"].value) == ("torch:1", "trainjob")


def test_what_starts_here_is_shown_when_it_is_opened(screen):
    assert len(screen.texts) == 2

    screen.fold("Manifests").click()

    until(lambda: "local: 1 to 2 node(s)" in screen.texts[2])
    screen.type("nnodes", "3")
    until(lambda: "local: 3 node(s)" in screen.texts[2])


def test_what_the_image_has_of_the_imports_is_a_table(cell):
    cell("import yaml, tqdm\nlater = tqdm.tqdm")
    screen = Screen(
        JobSpec(backend="kubernetes", package=["PyYAML"], cluster=Cluster(image="registry.example/train:1"))
    )
    screen.fold("This notebook's imports").click()
    assert "run a job with the image, or %torchjob doctor " in screen.image
    assert screen.cells[:2] == [HEAD, ("tqdm", "tqdm", version("tqdm"), "?", "?")]

    environment = EnvironmentTold(1.0, 0, "3.11.2", "x86_64", {"tqdm": "1.0", "torch": "2.13.0"})
    images.learn(JobImage("", "registry.example/train:2"), "sha256:1", environment)
    screen.type("image", "registry.example/train:2")

    assert f"The image has tqdm 1.0 (here {version('tqdm')})." in screen.image
    assert [row[3:] for row in screen.cells[1:]] == [("1.0", "differs"), ("", "pinned")]

    screen.type("backend", "local")
    assert "A job on this machine uses" in screen.image


def test_the_fields_of_a_cluster_show_with_their_choices(monkeypatch):
    requests = []

    def choices(self, spec):
        requests.append((spec.cluster.context, spec.cluster.namespace, threading.current_thread()))
        mount = Choice("type=volume,src=data,dst=/mnt/data", "10Gi")
        return {"context": [Choice("dev")], "kind": [Choice("volcano", "served here")], "mount": [mount]}

    monkeypatch.setattr(KubernetesBackend, "choices", choices)  # the test checks what is asked, and when
    screen = Screen()
    assert not screen.shows("image")

    screen.type("backend", "kubernetes")
    screen.open("Storage")
    until(lambda: screen.shows("choices for mount"))

    labels = [label for label, _ in screen["choices for mount"].options]
    assert labels[1] == "type=volume,src=data,dst=/mnt/data \u00b7 10Gi"
    screen.open("Place")
    assert ("volcano (served here)", "volcano") in screen["kind"].options
    assert ("pytorchjob", "pytorchjob") in screen["kind"].options
    assert screen["context"].options == ("dev",)
    assert requests[0][2] is not threading.current_thread()

    screen.type("choices for mount", "type=volume,src=data,dst=/mnt/data")
    assert screen["mount"].value == "type=volume,src=data,dst=/mnt/data"
    screen.type("context", "de")
    screen.type("context", "dev")
    until(lambda: len(requests) == 2)
    assert requests[1][:2] == ("dev", None)


def test_a_listing_that_fails_leaves_texts_to_type_in(monkeypatch):
    def choices(self, spec):
        raise NBTorchJobError("no")

    monkeypatch.setattr(KubernetesBackend, "choices", choices)  # fails at once, unlike a cluster
    screen = Screen(JobSpec(backend="kubernetes"))
    screen.open("Place")
    screen.type("namespace", "team")

    assert screen.panel.spec == JobSpec(backend="kubernetes", cluster=Cluster(namespace="team"))


def test_a_profile_is_saved_and_loaded_by_name(screen):
    screen.type("profile", "pair")
    screen.click("Save")
    screen.type("nnodes", "5")
    screen.click("Load")

    assert screen.panel.spec == PAIR
    assert verbs.parse("-p pair")[0] == PAIR
    assert profiles.names() == screen["profile"].options == ("pair",)


def test_a_profile_that_is_loaded_and_saved_is_as_it_was(screen):
    Path("nbtorchjob.toml").write_text(LAB)

    screen.type("profile", "lab")
    screen.click("Load")
    screen.click("Save")

    assert "Saved in " in told(screen)
    assert Path("nbtorchjob.toml").read_text() == LAB


def test_what_is_wrong_is_not_saved_and_what_there_is_not_not_loaded(screen):
    screen.type("profile", "pair")
    screen.click("Load")
    assert "unknown profile pair; available: none" in str(told(screen))
    assert screen.panel.spec == PAIR

    screen.type("nnodes", "x")
    screen.click("Save")
    assert "fix the invalid settings first" in told(screen)
    assert profiles.names() == ()


def told(screen):
    _, above = screen._find("profile")
    return above[-2].children[1].value


def test_hostile_texts_stay_texts(screen):
    screen.open("Code")
    screen.type("name", HOSTILE)
    screen.type("env", f"A={HOSTILE}")

    assert "<img" not in screen.error("name")
    screen.type("name", "")
    assert "&lt;img" in screen.texts[0]
    assert not any("<img" in text for text in (*screen.texts, screen.status))


def test_without_widgets_the_line_is_what_a_reader_sees(screen):
    bundle = screen.panel._repr_mimebundle_()

    assert bundle["text/plain"] == "%%torchjob --nnodes 1:2 --nproc-per-node 2 --env A=1"
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_without_ipywidgets_it_says_what_to_install(monkeypatch):
    for name in [
        name for name in sys.modules if name.startswith(("ipywidgets", "nbtorchjob.frontends.panel."))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ipywidgets", None)

    with pytest.raises(NBTorchJobError, match=r"pip install 'nbtorchjob\[jupyter\]'"):
        ConfigPanel()


def test_outside_a_notebook_run_says_how_to_submit(screen):
    screen.click("Run")

    assert "submit(fn, spec=panel.spec)" in screen.said


def test_without_a_function_run_says_so(screen, cell):
    screen.click("Run")

    assert "no cell has defined a function yet" in screen.said
    assert screen.panel.job is None


def test_an_argument_that_fails_is_told(screen, cell):
    cell("def train(n): return n")
    screen.type("call", "train(1 / 0)")
    screen.click("Run")

    assert screen.said == "CaptureError: train(1 / 0): ZeroDivisionError: division by zero\n"


def test_doctor_and_dry_run_tell_what_they_find(screen, cell):
    cell("def train(): return 1")
    cell("def test(): return 2\ndel train")

    screen.click("Dry run")
    until(lambda: "# test()" in screen.said)
    assert "local: 1 to 2 node(s)" in screen.said
    screen.click("Doctor")
    until(lambda: "jobs are kept in" in screen.said)


@pytest.mark.torch
def test_run_submits_the_function_defined_last_and_shows_its_card(cell):
    screen = Screen(Elastic(nproc_per_node=2))
    cell("def other(): return 1\ndef train(n=20): return n + 1")

    screen.click("Run")
    until(lambda: "Value: 21<" in card(screen))
    assert screen.panel.job is not None
    assert screen.panel.job.result() == 21
    assert front.newest() is screen.panel.job

    screen.type("call", "train(n=1)")
    screen.click("Run")
    until(lambda: "Value: 2<" in card(screen))


@pytest.mark.torch
def test_a_run_that_fails_shows_why(screen, cell):
    cell("def train(): raise ValueError('boom')")

    screen.click("Run")

    until(lambda: ">Failed<" in card(screen) and "boom" in card(screen))
    assert screen.panel.job.state.phase is Phase.FAILED


def card(screen):
    return "".join(part.get("data", {}).get("text/html", "") for part in screen.output)


def test_of_work_that_waits_only_the_newest_is_done():
    done: list[str] = []
    gate, first = threading.Event(), threading.Event()
    latest = Latest()

    def slow():
        first.set()
        assert gate.wait(LIMIT)
        return "first"

    latest.ask(slow, done.append)
    assert first.wait(LIMIT)
    latest.ask(lambda: "second", done.append)
    latest.ask(lambda: "third", done.append)
    gate.set()

    until(lambda: len(done) == 2)
    assert done == ["first", "third"]


@pytest.mark.kernel
@pytest.mark.torch
def test_config_opens_it_in_a_notebook_and_a_cell_uses_what_it_says():
    with started() as kernel:
        opened = kernel.run("%torchjob config")
        (shown,) = opened.all("display_data")
        assert "application/vnd.jupyter.widget-view+json" in shown["data"]
        assert shown["data"]["text/plain"] == "%%torchjob"

        kernel.run(
            "from nbtorchjob import ConfigPanel, Elastic, report\nConfigPanel(Elastic(nproc_per_node=2))"
        )
        job = kernel.run("%%torchjob\nimport os\nint(os.environ['WORLD_SIZE'])")
        assert job.value == "2"
        job = kernel.run("%%torchjob --nproc-per-node 1\nimport os\nint(os.environ['WORLD_SIZE'])")
        assert job.value == "1"
