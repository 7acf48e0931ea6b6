"""Jobs of a cluster in the sidebar, of a server with a kubeconfig that leads there."""

import json

import pytest
from nbconvert import HTMLExporter

from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.machine import folders
from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.images import TORCH
from tests.backends.kubernetes.conftest import crds  # noqa: F401
from tests.backends.kubernetes.stage import Stage
from tests.browser.conftest import TOKEN, Notebook, serving
from tests.patience import LIMIT

CELL = """%%torchjob --image {image} --kind indexedjob --name remote
import time
from pathlib import Path
while not Path({gate!r}).exists():
    time.sleep(0.05)
6 * 7"""

FAR = "http://stranger.invalid"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
HTML = f"""<script>window.owned = 1</script><img src=x onerror="window.owned = 1"><img src="{FAR}/img">
<svg onload="window.owned = 1"><script>window.owned = 1</script></svg>
<iframe srcdoc="<script>top.owned = 1</script>">
</iframe><a href="javascript:window.owned = 1" data-commandlinker-command="nbtorchjob:delete">stranger</a>
<style>@import "{FAR}/css"; * {{ display: none }}</style><form action="{FAR}"><button>Log in</button></form>
<div style="position:fixed;inset:0;z-index:9999;background:url({FAR}/css)">stranger</div>"""
LINKS = f"[md](javascript:window.owned=1) ![md]({FAR}/md) <{FAR}/auto> javascript:window.owned=1"
BUNDLES = [
    *(
        {mime: HTML}
        for mime in ("text/html", "image/svg+xml", "text/markdown", "text/latex", "text/vnd.mermaid")
    ),
    {
        "application/javascript": "window.owned = 1",
        "text/plain": "\x1b]52;c;b3duZWQ=\x07 instead of a script",
    },
    {"application/vnd.jupyter.es6-rich-output": "window.owned = 1"},
    {"application/vnd.jupyter.widget-view+json": '{"model_id": "1", "version_major": 2}'},
    {
        "application/vnd.jupyter.error": "{}",
        "application/geo+json": "{}",
        "application/vnd.vega.v5+json": "{}",
    },
    {"image/png": f'x" onerror="window.owned = 1"><script>window.owned = 1</script>{PIXEL}'},
    {"image/png": "not base64", "image/gif": "aGVsbG8="},
    {"image/png": PIXEL, "text/html": HTML, "text/plain": HTML + LINKS},
]
# A pod that puts all of this into the names, texts and displays of a job.
HOSTILE = f"""
html, links, bundles = {HTML!r}, {LINKS!r}, {BUNDLES!r}
begin()
for seq, data in enumerate(bundles):
    tell("Displayed", rank=0, round=0, seq=seq, data=data)
tell("Reported", rank=0, round=0, seq=0, metrics={{html: 1.0, "loss": 2.0, "<script>": 1.0}})
log(html + "\\n" + links + "\\n\\x1b]8;;javascript:window.owned=1\\x07press\\x1b]8;;\\x07\\n")
frame = {{"filename": html, "lineno": 1, "name": html, "line": html, "variables": [[html, html]]}}
error = {{"type": html, "message": html + links, "notes": [html], "frames": [frame], "time": time.time()}}
tell("RankFailed", node=0, rank=0, restart=0, round=0, error=error)
os._exit(exits.USER_ERROR)
"""


@pytest.fixture(scope="module")
def cluster(crds):  # noqa: F811
    """Start a cluster."""
    with Emulator() as cluster:
        cluster.namespace("ml")
        yield cluster


@pytest.fixture(scope="module")
def stranger(cluster, tmp_path_factory):
    """Run a job as somebody on another machine would, with hostile text wherever a job has text."""
    with pytest.MonkeyPatch.context() as patching:
        stage = Stage(cluster, tmp_path_factory.mktemp("stranger"), patching)
        source = f"1  # {HTML}".replace("\n", " ")
        job = stage.submit(HOSTILE, cell=source, namespace="ml", name="stranger")
        path = f"/apis/batch/v1/namespaces/ml/jobs/{job.name}"
        record = json.loads(cluster.request("GET", path)["metadata"]["annotations"][labelling.INFO])
        record |= dict.fromkeys(("label", "ships", "notebook", "cell", "python"), HTML)
        record |= {"sources": {HTML: [HTML, HTML]}, "captured": {HTML: [HTML, "0"]}}
        cluster.request("PATCH", path, {"metadata": {"annotations": {labelling.INFO: json.dumps(record)}}})
        assert job.exception(LIMIT) is not None
    return job


@pytest.fixture(scope="module")
def lab(chromium, tmp_path_factory, cluster, stranger):
    """Start a JupyterLab beside the cluster once the stranger's job has ended."""
    folder = tmp_path_factory.mktemp("cluster-lab")
    own = {"KUBECONFIG": str(cluster.kubeconfig), folders.STATE: str(folder / "state")}
    own |= {"NBTORCHJOB_BACKEND": "kubernetes", "NBTORCHJOB_NAMESPACE": "ml"}  # where the sidebar looks
    with serving(folder, chromium, **own) as lab:
        yield lab


def test_a_job_of_a_cluster_is_shown_live_and_its_manifest_is_copied(notebook, gate):
    page = notebook.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    cell = notebook.run_new(CELL.format(image=TORCH, gate=str(gate)))
    sidebar = notebook.sidebar
    row = sidebar.job("remote", "Running")
    assert "indexedjob in ml" in row.inner_text()

    sidebar.choose("remote", "Copy Manifest")
    page.get_by_text("Manifest of remote copied.").wait_for()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert "kind: Job" in copied
    assert "kind: Secret" not in copied

    sidebar.choose("remote", "Suspend")
    sidebar.job("remote", "Suspended")
    sidebar.choose("remote", "Resume")
    sidebar.job("remote", "Running")
    gate.touch()

    sidebar.job("remote", "Succeeded")
    notebook.output(cell).locator("pre:text-is('42')").wait_for()


# The stranger's elements that run, load or cover something in a page, except links that open a new tab.
_ACTIVE = """() => [...document.querySelectorAll(
  `script, iframe, object, embed, form, svg, style, link, base, meta, img, a, [onload], [onerror]`
)].filter(element => /stranger[.]invalid|[.]owned|javascript:window/.test(
  ["a", "img"].includes(element.localName) ? element.href ?? element.src : element.outerHTML
)).filter(({localName, protocol, target, rel}) => !(
  localName === "a" && /^https?:$/.test(protocol) && target === "_blank" && rel.includes("noopener")
)).map(element => element.outerHTML.slice(0, 200))"""


class Watched:
    """A page, with its requests to the stranger's server and its dialogs."""

    def __init__(self, page):
        self.page = page
        self.far: list[str] = []
        page.on("request", lambda request: self.far.append(request.url) if FAR in request.url else None)
        page.on("dialog", lambda dialog: self.far.append(dialog.message))

    def check(self):
        """Assert that the page ran and requested nothing of the stranger's."""
        assert self.page.evaluate("() => window.owned") is None
        assert self.page.evaluate(_ACTIVE) == []
        assert self.far == []


def test_a_job_of_a_stranger_runs_nothing_in_the_pages_of_who_opens_it(lab, stranger, tmp_path):
    cells = [
        "%load_ext nbtorchjob",
        f"%torchjob attach {stranger.info.id}",
        f"%torchjob describe {stranger.info.id}",
    ]
    notebook = lab.open("stranger", cells)
    page = notebook.page
    shown = Watched(page)
    for index in range(3):
        notebook.run(index)
        notebook.idle()
    output = notebook.output(1)
    output.locator(".nbt-state:text-is('Failed')").wait_for()
    output.evaluate("output => output.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    assert HTML.split("\n")[0] in output.inner_text()
    images = output.locator(".jp-RenderedImage img").all()
    assert [image.get_attribute("src").rpartition(",")[2] for image in images] == [PIXEL]
    assert "^[]52;c;b3duZWQ=^G instead of a script" in output.inner_text()
    kinds = output.locator("[data-mime-type]").evaluate_all("all => all.map(({dataset}) => dataset.mimeType)")
    assert {*kinds} == {"text/html", "text/plain", "image/png", "application/vnd.jupyter.stderr"}
    shown.check()
    saved = notebook.saved()

    sidebar = notebook.sidebar
    for choice, pane in {"Describe": ".jp-nbtorchjob-page", "Open Logs": ".jp-nbtorchjob-log-viewer"}.items():
        sidebar.choose("stranger", choice)
        page.locator(pane).get_by_text("window.owned = 1").first.wait_for()
        page.screenshot(path=tmp_path / f"{choice}.png")
        shown.check()

    exported = tmp_path / "exported.html"
    exported.write_text(HTMLExporter().from_notebook_node(saved)[0])
    alone = Watched(lab.page())
    alone.page.goto(exported.as_uri(), wait_until="domcontentloaded")
    alone.page.locator(".nbtorchjob").first.wait_for()
    alone.check()

    notebook7 = Watched(lab.page())
    notebook7.page.goto(f"{lab.url}/notebooks/stranger.ipynb?token={TOKEN}")
    again = Notebook(notebook7.page, notebook.path)
    again.run(1)
    again.output(1).locator(".jp-RenderedImage img").wait_for()
    notebook7.check()
    for opened in (shown, alone, notebook7):
        opened.page.close()
