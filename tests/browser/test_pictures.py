"""The look of each state, compared with the pictures in ``docs/pictures/`` (taken by ``make pictures``)."""

import shutil

import pytest

from nbtorchjob.backends.local import directory
from tests.browser import scripted

pictures = pytest.importorskip("tests.browser.pictures", reason="Pillow isn't installed")


@pytest.fixture
def shown(lab):
    """Write the scripted jobs; remove them afterwards, since other tests count the running jobs."""
    before = {path.name for path in directory.jobs_dir().iterdir()}
    yield scripted.write(str(lab.root / "pictures.ipynb"))
    for path in directory.jobs_dir().iterdir():
        if path.name not in before:
            shutil.rmtree(path)


def test_each_state_looks_as_in_its_picture(lab, shown, tmp_path):
    camera = pictures.Camera(lab, shown, tmp_path)

    texts = {path.name: pictures.differs(path, pictures.PICTURES / path.name) for path in camera.take((800,))}

    camera.close()
    assert {name: text for name, text in texts.items() if text} == {}
    assert len(texts) == 20
    assert pictures.differs(pictures.PICTURES / "hung-light-800.png", tmp_path / "hung-dark-800.png")
