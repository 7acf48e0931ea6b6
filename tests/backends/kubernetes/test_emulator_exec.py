"""The emulator answers commands in pods as a real API server does, by each websocket protocol it serves."""

import asyncio
import json
import re
import urllib.error
import urllib.parse
import urllib.request

import aiohttp
import pytest

from tests.backends.kubernetes.cluster import Emulator
from tests.backends.kubernetes.cluster.execution import V4, V5
from tests.backends.kubernetes.cluster.resources import SHARED
from tests.backends.kubernetes.stage import until

IMAGE = "localhost/busybox:1"
NAMESPACE = "rec-api-exec"

LEFT_OUT = {
    "no terminals here": "exec-v5-tty",
    "the variants in base64 aren't served here": "exec-base64-v4",
    "takes seconds, and says the same as another": "exec-v5-quiet|exec-v4-stdin-cat|exec-v5-stdin-closed.*",
    "somebody acts in between": "exec-v5-(container-killed|pod-deleted)-meanwhile",
}
USERS = {"none": [], "getter": ["get"], "creator": ["create"], "both": ["get", "create"]}
AS = {
    "forbidden-get-only": "getter",
    "forbidden": "none",
    "create-only": "creator",
    "get-and-create": "both",
}


def recorded():
    """Return the names of the recordings that these tests replay."""
    names = sorted(path.stem for path in (SHARED / "recordings-2" / "api").glob("exec-*.json"))
    return [name for name in names if not any(re.fullmatch(pattern, name) for pattern in LEFT_OUT.values())]


def pod(name, *commands):
    containers = [
        {"name": container, "image": IMAGE, "command": ["sh", "-c", command]}
        for container, command in zip(("main", "side"), commands, strict=False)
    ]
    spec = {"containers": containers, "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": spec,
    }


# The commands of each pod's containers, and the phase that the pod reaches.
PODS = {
    "x": (["gate"], "Running"),
    "two": (["gate", "true"], "Running"),
    "waiting": (["gate"], "Pending"),
    "done": (["true"], "Succeeded"),
}


@pytest.fixture(scope="module")
def cluster():
    with Emulator(kinds=()) as emulator:
        emulator.namespace(NAMESPACE)
        emulator.hold("waiting")
        for name, (commands, _) in PODS.items():
            emulator.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod(name, *commands))
        until(lambda: phases(emulator) == {name: phase for name, (_, phase) in PODS.items()})
        until(lambda: ended(emulator, "two", "side"))
        yield emulator


def phases(emulator):
    pods = emulator.objects(f"/api/v1/namespaces/{NAMESPACE}/pods")
    return {pod["metadata"]["name"]: pod["status"].get("phase") for pod in pods}


def ended(emulator, name, container):
    """Return whether a container has ended; its pod's status shows that only once the others have, too."""
    try:
        run(emulator, path("true", pod=name, container=container))
    except Refused:
        return True
    return False


class Refused(Exception):
    pass


async def _refused(response):
    if response.status != 101:
        raise Refused(response.status, await response.text())


async def _said(url, protocols, headers, inputs):
    async with (
        aiohttp.ClientSession(raise_for_status=_refused) as session,
        session.ws_connect(url, protocols=protocols, headers=headers) as socket,
    ):
        for message in inputs:
            await socket.send_bytes(message)
        messages = [(message.data[0], message.data[1:]) async for message in socket]
        return socket.protocol, messages, socket.close_code


def run(cluster, path, protocols=(V5,), token="", inputs=()):
    """Run a command; return the protocol, and the data of each channel."""
    url = cluster.url + path if token else cluster.admin_url + path
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    protocol, messages, code = asyncio.run(_said(url, protocols, headers, inputs))
    assert code == 1000
    assert messages[0] == (1, b"")
    return protocol, joined(messages)


def joined(messages):
    return {
        channel: b"".join(data for message, data in messages if message == channel) for channel in (1, 2, 3)
    }


def path(*command, pod="x", **more):
    query = [
        *(("command", word) for word in command),
        *{"container": "main", "stdout": "true", **more}.items(),
    ]
    return f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/exec?{urllib.parse.urlencode(query)}"


class Recorded:
    """A recorded request and its response."""

    def __init__(self, name):
        exchange = json.loads((SHARED / "recordings-2" / "api" / f"{name}.json").read_text())
        self.request, self.response = exchange["request"], exchange["response"]
        # Other recordings share pod x, which had failed by then: here the pod ``done`` stands in for it.
        self.path = self.request["path"].replace("/x/", "/done/" if "pod-failed" in name else "/x/")
        self.user = AS.get(re.sub("exec-v.-", "", name))
        self.bad_token = "bad-token" in name
        offered = self.request.get("headers", {}).get("Sec-WebSocket-Protocol", "")
        self.offered = offered.replace(" ", "").split(",") if offered else []
        frames = [frame for frame in exchange.get("frames", ()) if frame.get("type") == "binary"]
        self.said = [
            bytes([frame["channel"], *(frame.get("bytes") or frame.get("payload", "").encode())])
            for frame in frames
            if frame["from"] == "client"
        ]
        self.heard = [(frame["channel"], whole(frame)) for frame in frames if frame["from"] == "server"]

    def run(self, cluster):
        token = "nobody's" if self.bad_token else token_of(cluster, self.user) if self.user else ""
        return run(cluster, self.path, self.offered, token, self.said)


def whole(frame):
    data = frame["payload"].encode()
    return data[:1] * frame["payload_length"] if "payload_length" in frame else data


def same(channels):
    """Return the channels' content, without the id of an exec that couldn't be started."""
    ended = re.sub(r'start exec \\"\w+\\"', "start exec", channels[3].decode())
    return channels[1], channels[2], json.loads(ended or "null")


@pytest.mark.parametrize("name", recorded())
def test_it_answers_as_it_was_recorded(cluster, name):
    recording = Recorded(name)
    if recording.heard:
        protocol, channels = recording.run(cluster)
        assert (protocol or "") == recording.response["headers"]["Sec-WebSocket-Protocol"]
        assert same(channels) == same(joined(recording.heard))
        return
    expected_body = recording.response.get("body", "")
    if isinstance(expected_body, dict):  # the recorded service account is a user here
        expected_body = json.loads(
            json.dumps(expected_body).replace(f"system:serviceaccount:{NAMESPACE}:", "")
        )
    if "without-upgrade" in name:
        assert plain(cluster, recording.request["method"], recording.path) == (400, expected_body)
        return
    with pytest.raises(Refused) as refused:
        recording.run(cluster)
    code, body = refused.value.args
    assert code == (recording.response.get("status") or int(recording.response["status_line"].split()[1]))
    assert (json.loads(body) if isinstance(expected_body, dict) else body) == expected_body


def token_of(cluster, name):
    rules = [{"apiGroups": [""], "resources": ["pods/exec"], "verbs": USERS[name]}]
    cluster.allow(name, NAMESPACE, rules)
    return json.loads(cluster.user(name).read_text())["users"][0]["user"]["token"]


def plain(cluster, method, asked):
    call = urllib.request.Request(cluster.admin_url + asked, b"" if method == "POST" else None, method=method)
    call.add_header("Content-Type", "application/json")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(call)
    return refused.value.code, json.load(refused.value)


@pytest.mark.parametrize("protocol", [V4, V5])
def test_a_command_goes_with_its_container(cluster, protocol):
    cluster.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod(f"y{protocol[1]}", "gate"))
    name = f"y{protocol[1]}"
    until(lambda: phases(cluster)[name] == "Running")

    async def killed():
        url = cluster.admin_url + path("sh", "-c", "echo start; sleep 1000", pod=name)
        messages = []
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url, protocols=[protocol]) as socket,
        ):
            async for message in socket:
                messages.append((message.data[0], message.data[1:]))
                if message.data[1:] == b"start\n":
                    await asyncio.to_thread(cluster.oom_kill, NAMESPACE, name)
        return joined(messages)

    channels = asyncio.run(killed())
    assert channels[1] == b"start\n"
    assert json.loads(channels[3])["details"]["causes"] == [{"reason": "ExitCode", "message": "137"}]


def test_a_command_sees_what_its_container_sees(cluster):
    assert run(cluster, path("sh", "-c", "echo $HOSTNAME; pwd"))[1][1].startswith(b"x\n/")
