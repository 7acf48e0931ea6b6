"""What ranks have written, as a page browses it: while they run, and once the job has ended."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import cloudpickle
import pytest

from nbtorchjob import api, artifacts_dir, checkpoint_dir
from nbtorchjob.frontends.server.routes import files
from tests.backends.kubernetes.stage import until
from tests.frontends.server.conftest import error, jobs
from tests.frontends.server.routes.test_jobs import local
from tests.patience import LIMIT

# As in a notebook, whose functions no node can import.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.torch

PAGE = b"<script>alert(1)</script>"
BIG = os.urandom(files.MOST_SHOWN + 10)


def writes(go):
    folder = artifacts_dir()
    (folder / "runs").mkdir()
    (folder / "runs" / "page.html").write_bytes(b"<script>alert(1)</script>")
    (folder / "key").symlink_to(folder.parent / "key")
    (checkpoint_dir() / "last.pt").write_bytes(b"weights")
    (folder / "ready").touch()
    while not Path(go).exists():
        time.sleep(0.02)


async def listed(server, job, **query):
    told = "&".join(f"{name}={value}" for name, value in query.items())
    answer = await server.get(f"{jobs(local(job), 'files')}?{told}")
    assert answer.code == 200
    found = json.loads(answer.body)
    assert (found["trouble"], found["more"]) == ([], False)
    return {file["path"]: file["size"] for file in found["files"]}


async def test_files_are_listed_and_read_while_ranks_run_and_after(server, state_dir, tmp_path):
    job = api.submit(writes, str(tmp_path / "go"))
    await asyncio.to_thread(until, lambda: job.files("artifacts/ready").files)
    sizes = {"artifacts/ready": 0, "artifacts/runs/page.html": len(PAGE), "checkpoints/last.pt": 7}

    for ends in (False, True):
        if ends:
            (tmp_path / "go").touch()
            assert await asyncio.to_thread(job.wait, LIMIT)
        assert await listed(server, job) == sizes
        assert await listed(server, job, file="artifacts/runs") == {"artifacts/runs/page.html": len(PAGE)}
        page = f"{jobs(local(job), 'file')}?file=artifacts/runs/page.html"
        part, whole = await server.get(f"{page}&node=0&limit=7"), await server.get(page)
        assert (part.body, part.headers["X-File-Size"], whole.body) == (PAGE[:7], str(len(PAGE)), PAGE)
        assert whole.headers["Content-Disposition"] == "attachment; filename*=utf-8''page.html"
        for answer in (part, whole):  # no browser may take it for a page of the server's
            assert answer.headers["Content-Type"] == "application/octet-stream"
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        saved = await server.get(f"{jobs(local(job), 'file')}?file=checkpoints/last.pt")
        assert saved.body == b"weights"
        for wrong in ("artifacts/key", "artifacts/../key", "checkpoints/../key", "/etc/passwd", ""):
            code, message = error(await server.get(f"{jobs(local(job), 'file')}?file={wrong}"))
            assert code == 409
            assert wrong in message
        assert error(await server.get(f"{page}&node=5"))[0] == 409
        assert error(await server.get(f"{page}&limit={files.MOST_SHOWN + 1}"))[0] == 400
        assert error(await server.get(f"{page}&node=x"))[0] == 400
    assert error(await server.get(jobs("local:nobody-2222", "files")))[0] == 404
    job.delete()


async def test_a_file_too_big_to_be_shown_is_downloaded_whole(server, state_dir):
    job = api.submit(lambda data: (artifacts_dir() / "big").write_bytes(data), BIG)
    assert await asyncio.to_thread(job.wait, LIMIT)
    big = f"{jobs(local(job), 'file')}?file=artifacts/big"

    assert (await server.get(f"{big}&limit={files.MOST_SHOWN}")).body == BIG[: files.MOST_SHOWN]
    assert (await server.get(big)).body == BIG
    job.delete()
