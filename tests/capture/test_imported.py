"""Files beside the notebook that a call's code opens, but the call doesn't take along."""

import linecache
from dataclasses import replace

import pytest

from nbtorchjob import JobSpec, capture, submission
from nbtorchjob.capture import imported
from nbtorchjob.spec.cluster import Cluster


@pytest.fixture
def tree(tmp_path):
    """Return a notebook's folder."""
    (tmp_path / "data").mkdir()
    for name in ("data/train.csv", "config.yaml", "model.pt", "out.txt"):
        (tmp_path / name).touch()
    return tmp_path


def found(tree, text, **names):
    return imported.by_call(capture.from_cell(text, names, root=tree), tree)


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        ("open('config.yaml').read()", ["config.yaml"]),
        ("import pandas as pd\npd.read_csv('data/train.csv')", ["data/train.csv"]),
        ("import torch\ntorch.load(f='./model.pt')", ["model.pt"]),
        ("def load():\n    return AutoModel.from_pretrained('data')\nAutoModel = None", ["data"]),
        ("from pathlib import Path\nlist((Path('data') / 'train.csv').open())", ["data/train.csv"]),
        ("from pathlib import Path\nname = 'x'\n(Path('data') / name).open()", []),
        ("from pathlib import Path\nlist(Path('data').iterdir())", ["data"]),
        ("import os\nopen(os.path.join('data', 'train.csv'))", ["data/train.csv"]),
        ("where = 'config.yaml'\nopen(where)", ["config.yaml"]),
        ("files = {'train': ['data/train.csv']}\nload_dataset('csv', data_files=files)", []),
        ("def load_dataset(*a, **k): ...\nload_dataset('csv', data_files={'a': ['data/train.csv']})",
         ["data/train.csv"]),
        ("open('out.txt', 'w')", []),
        ("open('out.txt', mode='w')", []),
        ("from pathlib import Path\nopen(Path('out.txt'), 'wb')", []),
        ("from pathlib import Path\nPath('out.txt').open('a')", []),
        ("from pathlib import Path\nimport torch\ntorch.save(1, Path('model.pt'))", []),
        ("from pathlib import Path\nPath('out.txt').open('r')", ["out.txt"]),
        ("from pathlib import Path\n(Path('data') / 'train.csv').open('w')", []),
        ("import pandas as pd\ndef to_x(d): ...\nto_x(pd.read_csv('data/train.csv'))", ["data/train.csv"]),
        ("from pathlib import Path\nPath('out.txt').write_text('x')", []),
        ("import torch\ntorch.save(1, 'model.pt')", []),
        ("from pathlib import Path\np = Path('out.txt')\nopen(p, 'w')", []),
        ("from pathlib import Path\np = Path('out.txt')\np.write_text('x')\np.touch()", []),
        ("from pathlib import Path\np = Path('out.txt')\np.touch()\np.read_text()", ["out.txt"]),
        ("from pathlib import Path\nd = Path('data')\n(d / 'train.csv').write_text('x')", []),
        ("from pathlib import Path\nd = Path('data')\n(d / 'x').write_text('x')\nrun(d)", ["data"]),
        ("import torch\nbest = 'model.pt'\ntorch.save(1, best)\ntorch.load(best)", ["model.pt"]),
        ("print('config.yaml', 'data')", []),
        ("open('not there'); open('/etc/passwd'); open('../x'); open('.')", []),
    ],
)  # fmt: skip
def test_a_path_that_code_opens_is_found(tree, text, paths):
    assert found(tree, text, load_dataset=print, run=print) == paths


def test_a_captured_path_counts_and_a_captured_function(tree):
    assert found(tree, "open(path)", path="config.yaml") == ["config.yaml"]
    assert found(tree, "print(path)", path="config.yaml") == []
    text = "def read():\n    return open('data/train.csv')\ndef other():\n    return open('model.pt')\n"
    linecache.cache["<cell 7>"] = (len(text), None, text.splitlines(True), "<cell 7>")
    space = {"__name__": "__main__"}
    exec(compile(text, "<cell 7>", "exec"), space)
    assert found(tree, "read()", **space) == ["data/train.csv"]
    del linecache.cache["<cell 7>"]


def test_the_note_says_how_it_goes_along(tree):
    call = capture.from_cell("open('config.yaml'), open('data/train.csv'), open('model.pt')", {}, root=tree)
    (note,) = imported.not_shipped(call, tree, [])
    assert note == (
        "config.yaml, data/train.csv, model.pt lie beside the notebook, but not on ranks: "
        "--ship config.yaml --ship data/train.csv --ship model.pt"
    )
    (note,) = imported.not_shipped(call, tree, ["data", "model.pt"])
    assert note == "config.yaml lies beside the notebook, but not on ranks: --ship config.yaml"
    assert imported.not_shipped(call, tree, ["."]) == ()
    folder = capture.from_cell("import os\nos.listdir('data')", {}, root=tree)
    assert imported.not_shipped(folder, tree, ["data/train.csv"]) == ()


def test_a_note_is_for_a_cluster_alone(tree, monkeypatch):
    monkeypatch.chdir(tree)
    call = capture.from_cell("open('config.yaml')", {}, root=tree)
    assert submission.missing_files(call, JobSpec()) == ()
    cluster = JobSpec(backend="kubernetes", cluster=Cluster(image="i"))
    assert len(submission.missing_files(call, cluster)) == 1
    assert submission.missing_files(call, replace(cluster, ship=["config.yaml"])) == ()
