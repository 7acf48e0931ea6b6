"""Routes of jobs: all of them, one, and what can be done to one.

The functions that make a job's texts and pages block, so they run in a lane.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote

from jupyter_server.auth.decorator import authorized
from jupyter_server.utils import url_path_join
from tornado import web

from nbtorchjob.backends import naming
from nbtorchjob.backends.base import Backend, Exports, Retries, TenderStatus, able, who_tends
from nbtorchjob.commands import swapping
from nbtorchjob.commands.table import CHANGES, OFFERS
from nbtorchjob.errors import DamagedError, MalformedError
from nbtorchjob.frontends.server.handlers import CREATED, TEXT, Api, JobId, run_of
from nbtorchjob.frontends.server.watch import News, Note, Watch
from nbtorchjob.machine.folders import state_dir
from nbtorchjob.state import JobState
from nbtorchjob.state.info import run_at
from nbtorchjob.ui import page
from nbtorchjob.ui.card import describe, render


def description(backend: Backend, name: str) -> str:
    """Return all that is known of a job, as ``%torchjob describe`` does."""
    return describe.text(*_describe_args(backend, name)) + "\n"


def described(backend: Backend, name: str) -> page.Page:
    """Return the same, and the job's options and code, for a page to lay out."""
    return page.description(*_describe_args(backend, name))


def _describe_args(
    backend: Backend, name: str
) -> tuple[JobState, float, Mapping[str, str], Path, TenderStatus | None]:
    state = backend.snapshot(name)
    enforced = {} if state.info.unreadable else backend.enforcement(state.info)
    tended = None if state.phase.terminal else who_tends(backend, state.info)
    return state, time.time(), enforced, state_dir(), tended


def card(backend: Backend, name: str) -> str:
    """Return a job's card as HTML, for a page whose kernel doesn't draw it."""
    return render.html(backend.snapshot(name), time.time(), offers=OFFERS)


def window(pieces: Iterator[bytes], limit: int | None) -> Iterator[bytes]:
    """Yield the first ``limit`` bytes of a log, holding one piece at a time; all with None."""
    for piece in pieces:
        part = piece[:limit]
        if limit is not None:
            limit -= len(part)
        if part:
            yield part
        if limit == 0:
            return


T = TypeVar("T")

_SET_S = 30.0  # for ranks to come to one call: the request itself has a minute
_AT_ONCE = 256  # records to write before serving other requests: thousands take tens of milliseconds


class JobsHandler(Api):
    """Every job."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Return ``{"jobs": […], "notes": […], …}``: records, oldest first, and why some may be missing.

        Jobs whose ids begin with one of ``unseen`` may exist without being listed, or have changed by now.

        ``mark`` stands for this answer. With a mark as ``known``, only jobs that are new or changed since
        then are returned, and the ids of those that were ``removed``; unless the answer is ``whole``, as
        for an unknown mark.
        """
        watch, mark = _watch(self), self.get_argument("known", "")
        states, notes = await watch.jobs()
        self.finish(await jobs_json(watch.history.since(mark, states), notes))


async def jobs_json(news: News, notes: Sequence[Note]) -> str:
    """Return jobs as JSON, serving other requests in between."""
    parts = []
    for at in range(0, len(news.jobs), _AT_ONCE):
        parts.append(", ".join(map(json.dumps, news.jobs[at : at + _AT_ONCE])))
        await asyncio.sleep(0)
    rest = {
        "removed": [*news.removed],
        "whole": news.whole,
        "mark": news.mark,
        "notes": [note.text for note in notes],
        "unseen": [note.ids for note in notes],
    }
    return f'{{"jobs": [{", ".join(parts)}], {json.dumps(rest)[1:]}'


class JobHandler(Api):
    """One job."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return the job's record."""
        job = JobId.parse(id)
        job_record = _watch(self).job(job)
        if job_record is None or self.run not in ("", run_at(job_record["created"])):
            job_record = await self.of(job, lambda backend, name: self.record(backend.snapshot(name)))
        self.finish(job_record)

    @web.authenticated
    @authorized
    async def delete(self, id: str) -> None:
        """End the job if it runs, and remove all that is kept of it; 204 once that is done."""

        def delete(backend: Backend, name: str) -> None:
            with suppress(DamagedError):  # its record isn't needed
                backend.info(name)
            backend.delete(name)

        await _change(self, JobId.parse(id), delete)
        self.finish_empty()


class VerbHandler(Api):
    """Changes to a job, other than its deletion."""

    @web.authenticated
    @authorized
    async def post(self, id: str, verb: str) -> None:
        """Cancel, suspend, resume or start it, end a lab, or sample its stacks; 204 once that was requested.

        Repeating a request changes nothing.
        """
        if verb not in CHANGES:
            raise web.HTTPError(HTTPStatus.NOT_FOUND, f"a POST to a job must be one of {', '.join(CHANGES)}")

        def change(backend: Backend, name: str) -> None:
            try:
                backend.info(name)  # raises for a missing job, whose end would silently change nothing
            except DamagedError:
                if verb != "cancel":  # its record isn't needed to end a job
                    raise
            CHANGES[verb](backend, name)

        await _change(self, JobId.parse(id), change)
        self.finish_empty()


class ValuesHandler(Api):
    """The plain values that a running job's code reads."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return the values that are known, with their names."""
        pairs = await self.of(JobId.parse(id), swapping.values)
        self.finish({"values": [{"name": name, "value": value} for name, value in pairs]})

    @web.authenticated
    @authorized
    async def post(self, id: str) -> None:
        """Set each ``value``, such as ``lr=1e-4``, on all ranks at one step; return the outcome."""
        words = self.get_arguments("value")
        if not words:
            raise MalformedError("value: got none, but it must be NAME=VALUE, once for each value")
        work = partial(swapping.set_values, words=words, seconds=_SET_S)
        self.finish(await _change(self, JobId.parse(id), work), set_content_type=TEXT)


class NoteHandler(Api):
    """A job's note and tags."""

    @web.authenticated
    @authorized
    async def put(self, id: str) -> None:
        """Replace both with those in the body, ``{"note": …, "tags": […]}``; 204 once they are stored."""
        json_body = self.get_json_body()
        body = json_body if isinstance(json_body, dict) else {}
        note, tags = body.get("note"), body.get("tags")
        words = isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)
        if not isinstance(note, str) or not words or len(body) > 2:
            raise MalformedError('the body must be {"note": TEXT, "tags": [TEXT, …]}')

        def annotate(backend: Backend, name: str) -> None:
            naming.annotate(backend, backend.brief_state(name), note, tags=tags)

        await _change(self, JobId.parse(id), annotate)
        self.finish_empty()


class RetryHandler(Api):
    """A retry of an ended job."""

    resumes = False

    @web.authenticated
    @authorized
    async def post(self, id: str) -> None:
        """Start the retry as a new job, a different one each time; return the new job's record.

        A request that comes while such a job is being started, also after an earlier one's 504, gets that
        job.
        """
        verb = "continue" if self.resumes else "retry"
        info = await _change(
            self,
            JobId.parse(id),
            lambda backend, name: able(backend, Retries, "retry", name).retry(name, resume=self.resumes),
            once=f"{verb} {id}",
        )
        path = f"nbtorchjob/api/jobs/{quote(info.id, safe='')}"
        self.set_status(HTTPStatus.CREATED)
        self.set_header("Location", url_path_join(self.base_url, path))
        self.finish(self.record(JobState(info)))


class ContinueHandler(RetryHandler):
    """A retry of an ended job that begins with its checkpoints."""

    resumes = True


def _watch(handler: Api) -> Watch:
    watch: Watch = cast("Any", handler.extensionapp).watch
    return watch


async def _change(handler: Api, job: JobId, work: Callable[[Backend, str], T], once: str = "") -> T:
    """Do something to a job, and look at it again, so that all pages see the outcome."""
    try:
        return await handler.of(job, work, once)
    finally:
        _watch(handler).again(job)


class DescriptionHandler(Api):
    """A job in words."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return what ``%torchjob describe`` shows, as plain text."""
        self.finish(await self.of(JobId.parse(id), description), set_content_type=TEXT)


class PageHandler(Api):
    """A job for a page to lay out."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return what ``%torchjob describe`` shows, the job's options and its code: titled parts, as data."""
        self.finish(await self.of(JobId.parse(id), described))


_MEANT = re.compile(rf"(.*?)(?:@({CREATED}))?", re.DOTALL)


class CompareHandler(Api):
    """Jobs compared with each other."""

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Return the jobs' curves, and how their options and their code differ from the first one's.

        A ``job`` may end in ``@`` and when it was created: no later job with its id is meant.
        """
        # A cluster's context may have an @ as well, but never after the last slash.
        matches = [_MEANT.fullmatch(text) for text in self.get_arguments("job")]
        jobs = [(JobId.parse(match[1]), run_of(match[2] or "")) for match in matches if match]
        if not 2 <= len(jobs) <= page.MOST:
            raise MalformedError(f"job: got {len(jobs)}, but it must be 2 to {page.MOST} jobs")
        states = await asyncio.gather(
            *(self.of(job, lambda backend, name: backend.snapshot(name), run=run) for job, run in jobs)
        )
        self.finish(await self.ask("comparisons", lambda: page.comparison(states, time.time())))


class CardHandler(Api):
    """A job's card."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return the card as it is drawn now: HTML without scripts, as text, so that no browser opens it."""
        self.finish(await self.of(JobId.parse(id), card), set_content_type=TEXT)


class ManifestsHandler(Api):
    """The manifests that run a job on a cluster."""

    @web.authenticated
    @authorized
    async def get(self, id: str) -> None:
        """Return the YAML of the job's objects except Secrets; 409 for a job that has none."""
        manifests = await self.of(
            JobId.parse(id), lambda backend, name: able(backend, Exports, "manifests", name).manifests(name)
        )
        self.finish(manifests, set_content_type=TEXT)
