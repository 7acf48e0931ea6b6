"""The only table of routes: the app registers it, and the OpenAPI document describes it."""

from __future__ import annotations

from http import HTTPStatus

from nbtorchjob.frontends.server.routes import jobs, logs, settings
from nbtorchjob.frontends.server.routes.openapi import (
    ASKED,
    CHECKED,
    DONE,
    OF_A_JOB,
    OF_A_SOCKET,
    PLAIN,
    SOCKET,
    ZIPPED,
    OpenApiHandler,
    Route,
    shaped,
)

_JOB = "jobs/{id}"

# Where two match a path, the first one counts.
ROUTES = (
    Route("jobs", jobs.JobsHandler, {"GET": shaped("Jobs")}, (HTTPStatus.BAD_REQUEST,), ("known",)),
    Route(_JOB, jobs.JobHandler, {"GET": shaped("Job"), "DELETE": DONE}, OF_A_JOB),
    Route(f"{_JOB}/card", jobs.CardHandler, {"GET": PLAIN}, OF_A_JOB),
    Route(f"{_JOB}/describe", jobs.DescriptionHandler, {"GET": PLAIN}, OF_A_JOB),
    Route(f"{_JOB}/page", jobs.PageHandler, {"GET": shaped("Page")}, OF_A_JOB),
    Route(f"{_JOB}/manifests", jobs.ManifestsHandler, {"GET": PLAIN}, OF_A_JOB),
    Route(f"{_JOB}/logs", logs.LogsSocket, {"GET": SOCKET}, OF_A_SOCKET, ("since", "ranks")),
    Route(f"{_JOB}/logs/{{rank}}", logs.LogHandler, {"GET": PLAIN}, OF_A_JOB, ("offset", "limit")),
    Route(f"{_JOB}/logs.zip", logs.ArchiveHandler, {"GET": ZIPPED}, OF_A_JOB, ("times",)),
    Route(f"{_JOB}/artifacts", logs.ArtifactsHandler, {"GET": shaped("Artifacts")}, OF_A_JOB, ("attempt",)),
    Route(f"{_JOB}/artifacts.zip", logs.ArtifactsArchiveHandler, {"GET": ZIPPED}, OF_A_JOB, ("attempt",)),
    Route(f"{_JOB}/retry", jobs.RetryHandler, {"POST": shaped("Job", HTTPStatus.CREATED)}, OF_A_JOB),
    Route(f"{_JOB}/{{verb}}", jobs.VerbHandler, {"POST": DONE}, OF_A_JOB),
    Route("compare", jobs.CompareHandler, {"GET": shaped("Page")}, OF_A_JOB, ("job",)),
    Route("options", settings.OptionsHandler, {"GET": shaped("Document")}),
    Route("profiles", settings.ProfilesHandler, {"GET": shaped("Profiles")}, CHECKED, ("path",)),
    Route("doctor", settings.DoctorHandler, {"POST": shaped("Findings")}, ASKED, ("profile", "path")),
    Route("openapi.json", OpenApiHandler, {"GET": shaped("Document")}),
)
