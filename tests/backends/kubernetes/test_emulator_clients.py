"""The emulator's operators call its API without a connection, and get the same answers as over HTTP."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys

import pytest

from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.controllers.client import ApiError, Client, HttpClient, collection
from tests.patience import LIMIT


@pytest.fixture(scope="module")
def cluster():
    with Emulator(kinds=("indexedjob",)) as cluster:
        yield cluster


def both(cluster, talk):
    """Hold a conversation inside and over HTTP, each in a namespace of its own; return the notes of both."""

    async def inside(client: Client):
        return await noted(client, talk)

    async def http():
        async with HttpClient(cluster.admin_url) as client:
            return await noted(client, talk)

    return cluster.converse(inside), asyncio.run(http())


_SPACES = iter(range(1000))


async def noted(client, talk):
    space = f"space{next(_SPACES)}"
    notes = []

    async def note(request):
        try:
            notes.append(await request)
        except ApiError as error:
            notes.append([error.code, error.message])

    # The emulator's ``namespace`` runs on the emulator's own thread, which may be this one.
    await client.create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
    )
    await talk(client, space, note)
    text = json.dumps(notes, sort_keys=True).replace(space, "SPACE")
    for changing in (
        r'(?<="uid": ")[^"]+',
        r'(?<="resourceVersion": ")\d+',
        r'(?<=Timestamp": ")[^"]+',
        r"(?<=thing-)[b-z2-9]{5}\b",
    ):
        text = re.sub(changing, "…", text)
    return json.loads(text)


def thing(name="", **more):
    meta = {"name": name} if name else {"generateName": "thing-"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**meta, **more}, "data": {"a": "1"}}


def test_every_verb_answers_alike(cluster):
    async def talk(client, space, note):
        things = collection("v1", "configmaps", space)
        await note(client.create(things, thing("one", labels={"of": "us"})))
        await note(client.create(things, thing()))
        await note(client.get(f"{things}/one"))
        await note(client.get(f"{things}/none"))
        await note(client.list(things))
        await note(client.list(things, "of=us"))
        await note(client.patch(f"{things}/one", {"data": {"a": None, "b": "2"}}))
        await note(client.delete(f"{things}/one"))
        await note(client.delete(f"{things}/one"))
        await note(client.list(things, "of=us"))

    inside, http = both(cluster, talk)

    assert inside == http
    assert [type(answer).__name__ for answer in inside] == [
        *("dict", "dict", "dict", "NoneType", "list", "list", "dict", "NoneType", "NoneType", "list")
    ]


def test_every_refusal_is_the_same(cluster):
    async def talk(client, space, note):
        things = collection("v1", "configmaps", space)
        await note(client.create(things, thing("one")))
        await note(client.create(things, thing("one")))
        await note(client.create(things, thing("Not A Name")))
        await note(client.create(things, {**thing("two"), "kind": "Secret"}))
        await note(client.create(things, thing("three", namespace="elsewhere")))
        await note(client.create(collection("v1", "configmaps", "nowhere"), thing("four")))
        await note(client.create("/apis/none.org/v1/namespaces/x/things", thing("five")))
        await note(client.patch(f"{things}/none", {}))
        await note(client.list("/apis/none.org/v1/things"))
        await note(client.request("POST", f"{things}/one", {}))

    inside, http = both(cluster, talk)

    assert inside == http
    assert {answer[0] for answer in inside[1:] if answer} >= {400, 404, 409}


def test_who_writes_a_status_of_an_older_object_is_refused(cluster):
    async def talk(client, space, note):
        jobs = collection("batch/v1", "jobs", space)
        container = {"name": "main", "image": "none"}
        template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
        spec = {"template": template, "suspend": True}
        body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "one"}, "spec": spec}
        job = await client.create(jobs, body)
        await client.patch(f"{jobs}/one", {"metadata": {"annotations": {"a": "b"}}})
        await note(client.write_status(f"{jobs}/one", job, {"active": 1}))
        await client.delete(f"{jobs}/one")

    inside, http = both(cluster, talk)

    assert inside == http
    assert inside[0][0] == 409


def test_changes_come_alike(cluster):
    async def talk(client, space, note):
        things = collection("v1", "configmaps", space)
        await client.create(things, thing("one"))
        async with contextlib.aclosing(client.changes(things)) as changes:

            async def next_one():
                while True:
                    obj = await anext(changes)
                    if obj["metadata"]["name"] == "one":  # a namespace comes with some of its own
                        return obj

            await note(next_one())
            await client.patch(f"{things}/one", {"data": {"a": "2"}})
            await note(next_one())
            await client.delete(f"{things}/one")
            await note(next_one())

    inside, http = both(cluster, talk)

    assert inside == http
    assert [obj["data"]["a"] for obj in inside] == ["1", "2", "2"]


def test_what_a_controller_does_to_an_answer_changes_no_object(cluster):
    async def talk(client, space, note):
        things = collection("v1", "configmaps", space)
        body = thing("one")
        answer = await client.create(things, body)
        body["data"]["a"] = answer["data"]["a"] = "changed"
        (await client.get(f"{things}/one"))["data"]["a"] = "changed"
        await note(client.get(f"{things}/one"))

    inside, http = both(cluster, talk)

    assert inside == http
    assert inside[0]["data"] == {"a": "1"}


def test_a_server_that_is_stopped_answers_nobody(cluster):
    with Emulator(kinds=()) as stopped:
        stopped.stop_server()

        async def talk(client):
            await client.get("/api/v1/namespaces/default")

        with pytest.raises(ConnectionError):
            stopped.converse(talk)


# As in a stranger's clone, without the operators' definitions beside the checkout.
STRANGER = """
import pathlib
is_dir = pathlib.Path.is_dir
pathlib.Path.is_dir = lambda path: path.name != "crds" and is_dir(path)
from tests.backends.kubernetes.cluster import Emulator
with Emulator() as cluster:
    print(*cluster.kinds)
"""


def test_a_cluster_without_definitions_has_the_kind_that_needs_none():
    ran = subprocess.run([sys.executable, "-c", STRANGER], capture_output=True, text=True, timeout=LIMIT)

    assert (ran.stdout, ran.returncode) == ("indexedjob\n", 0), ran.stderr
