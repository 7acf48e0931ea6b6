"""The extension's plugins: what they share with other extensions, and a user's settings."""

import json

import pytest

from tests.browser.conftest import TOKEN

# Resolve the token as JupyterLab does for an extension that requires it.
_JOBS = """async name => {
  const {ITorchJobs} = (await window._JUPYTERLAB.nbtorchjob.get("./index"))();
  const {model, openLogs} = await jupyterapp.resolveRequiredService(ITorchJobs);
  await model.refresh();
  const job = [...model.jobs.values()].find(job => job.name === name);
  openLogs(job);
  return [job.phase, job.terminal];
}"""


def test_another_extension_gets_the_jobs_and_opens_their_logs(notebook):
    notebook.run_new("%%torchjob --name shared\nprint('seen by others')")
    notebook.sidebar.job("shared", "Succeeded")

    assert notebook.page.evaluate(_JOBS, "shared") == ["SUCCEEDED", True]
    logs = notebook.page.locator(".jp-nbtorchjob-log-viewer").get_by_role("log")
    logs.get_by_text("seen by others").wait_for()


@pytest.fixture
def settings(lab):
    """Yield a function that writes a user's settings of our extension; reset them when the test ends."""
    page = lab.page()

    def put(**settings):
        address = f"{lab.url}/lab/api/settings/nbtorchjob:plugin"
        answer = page.request.put(
            address, headers={"Authorization": f"token {TOKEN}"}, data={"raw": json.dumps(settings)}
        )
        assert answer.ok

    yield put
    put()
    page.close()


def test_a_user_s_settings_are_found(lab, settings):
    settings(options="--nproc-per-node 2", askSize=False)
    notebook = lab.open("settings", ["1"])
    notebook.run_new("6 * 7")

    notebook.output(1).locator("pre").get_by_text("42", exact=True).wait_for()
    assert notebook.source(1) == "%%torchjob --nproc-per-node 2\n6 * 7"
    notebook.page.close()
