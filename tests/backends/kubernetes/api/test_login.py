"""Logging in: kubeconfig files, login commands, the pod's own account, and tokens that expire."""

import asyncio
import base64
import json
import os
import re
import shutil
import stat
import sys
from pathlib import Path

import pytest
import yaml

from nbtorchjob.backends.kubernetes.api import login
from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.kubeconfig import Kubeconfig, contexts
from nbtorchjob.backends.kubernetes.objects.reading import PODS, Target
from nbtorchjob.errors import ClusterError, UnreachableError
from nbtorchjob.machine import loop
from tests.backends.kubernetes.scripted import Reply, Server, Stream, kubeconfig, scripted, status
from tests.backends.kubernetes.stage import until

POD = Target(PODS, "ns", "a")
POD_PATH = "/api/v1/namespaces/ns/pods/a"
UNAUTHORIZED = status(401, "Unauthorized", "Unauthorized")
FOUND = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a", "uid": "a"}}


def attempt(client=None, **environment):
    """Ask a cluster for a pod; return the text of the error that this raises."""

    async def work():
        used = client or Client(pause=0.001)
        try:
            await used.get(POD)
        finally:
            await used.close()

    with pytest.raises(ClusterError) as caught:
        asyncio.run(work())
    return str(caught.value)


@pytest.fixture
def login_command(tmp_path):
    """Return a kubeconfig user with a login command that prints the file ``token``, or fails without it."""
    token, script = tmp_path / "token", tmp_path / "login"
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, pathlib, sys\n"
        f"token = pathlib.Path({str(token)!r})\n"
        "if not token.exists(): sys.exit('your session has ended')\n"
        "print(json.dumps({'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        " 'status': {'token': token.read_text()}}))\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)}}


def test_without_a_kubeconfig_it_says_where_it_looked(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    assert str(tmp_path / "absent") in attempt()


def test_a_context_needs_a_kubeconfig_even_inside_a_cluster(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")

    assert "no context 'team'" in attempt(Client("team"))


def test_a_broken_kubeconfig_is_named(monkeypatch, tmp_path):
    (tmp_path / "broken").write_text("just words")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "broken"))

    assert str(tmp_path / "broken") in attempt()


@scripted
async def test_an_unknown_context_is_named(server, client):
    with pytest.raises(ClusterError, match="elsewhere"):
        await Client("elsewhere").namespace()


def test_a_server_that_never_answered_is_reported_at_once(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", kubeconfig(tmp_path / "config", "http://127.0.0.1:1"))
    client = Client(pause=60)

    assert "http://127.0.0.1:1" in attempt(client)
    assert client.requests == 1


@scripted
async def test_of_several_kubeconfigs_the_first_one_decides(server, client, monkeypatch, tmp_path):
    files = [kubeconfig(tmp_path / name, f"http://{name}", name=name) for name in ("one", "two")]
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(["", str(tmp_path / "absent"), *files]))

    assert await Client().namespace() == "one-ns"
    assert await Client("two").namespace() == "two-ns"


@scripted
async def test_the_token_is_sent(server, client):
    server.on(POD_PATH, Reply(body=FOUND))

    assert await client.get(POD) == FOUND
    assert server.asked[0].headers["authorization"] == "Bearer first"


@scripted
async def test_a_token_that_expires_is_loaded_anew(server, client, tmp_path):
    server.on(POD_PATH, UNAUTHORIZED, Reply(body=FOUND))
    await client.namespace()
    kubeconfig(tmp_path / "kubeconfig", server.url, token="second")

    assert await client.get(POD) == FOUND
    assert [request.headers["authorization"] for request in server.asked] == ["Bearer first", "Bearer second"]


@scripted
async def test_many_requests_log_in_once_more_together(server, client, tmp_path, login_command):
    (tmp_path / "token").write_text("old")
    kubeconfig(tmp_path / "kubeconfig", server.url, **login_command)
    server.on(POD_PATH, *[UNAUTHORIZED] * 5, Reply(body=FOUND))

    await client.namespace()
    (tmp_path / "token").write_text("new")
    await asyncio.gather(*(client.get(POD) for _ in range(5)))

    used = [request.headers["authorization"] for request in server.asked]
    assert used == ["Bearer old"] * 5 + ["Bearer new"] * 5


@scripted
async def test_credentials_that_stay_refused_are_an_error(server, client):
    server.on(POD_PATH, UNAUTHORIZED)

    with pytest.raises(ClusterError, match=r"credentials.*log in again"):
        await client.get(POD)
    assert client.requests == 2


@scripted
async def test_credentials_that_stay_refused_leave_no_connections_open(server, client):
    server.on(POD_PATH, UNAUTHORIZED)

    for _ in range(5):
        with pytest.raises(ClusterError):
            await client.get(POD)

    assert len(client._connection._logins) == 1


@scripted
async def test_what_an_old_login_began_to_read_is_read_to_its_end(server, client):
    go = asyncio.Event()
    server.on(f"{POD_PATH}/log", Stream([b"one\n", go, b"two\n"]))
    server.on(POD_PATH, UNAUTHORIZED, Reply(body=FOUND))

    async with client.stream("get", Target(PODS, "ns", "a", "log"), {}, silence=10.0) as answer:
        chunks = answer.chunks()
        first = await anext(chunks)
        await client.get(POD)
        go.set()
        assert [first, await anext(chunks)] == [b"one\n", b"two\n"]
        assert len(client._connection._logins) == 2

    assert len(client._connection._logins) == 1


@scripted
async def test_a_token_that_expires_leads_to_no_other_cluster(server, client, tmp_path):
    server.on(POD_PATH, UNAUTHORIZED, Reply(body=FOUND))
    await client.namespace()
    kubeconfig(tmp_path / "b", "http://127.0.0.1:1", name="b")
    document, other = (yaml.safe_load((tmp_path / name).read_text()) for name in ("kubeconfig", "b"))
    for part in ("clusters", "contexts", "users"):
        document[part] += other[part]
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump({**document, "current-context": "b"}))

    assert await client.get(POD) == FOUND
    assert client.context == "main"


@scripted
async def test_a_token_file_may_end_with_a_newline(server, client, tmp_path):
    (tmp_path / "token").write_text("mine\n")
    kubeconfig(tmp_path / "kubeconfig", server.url, tokenFile=str(tmp_path / "token"))
    server.on(POD_PATH, Reply(body=FOUND))

    await client.get(POD)

    assert server.asked[-1].headers["authorization"] == "Bearer mine"


@pytest.mark.parametrize("where", ["a kubeconfig", "this pod's account"])
@scripted
async def test_an_authority_without_key_identifiers_is_trusted_as_by_kubectl(
    server, client, monkeypatch, tmp_path, strict_tls, where
):
    async with Server(strict_tls) as secure:
        secure.on(POD_PATH, Reply(body=FOUND))
        if where == "a kubeconfig":
            kubeconfig(tmp_path / "kubeconfig", secure.url, token="mine")
            document = yaml.safe_load((tmp_path / "kubeconfig").read_text())
            document["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"
            (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
        else:
            (tmp_path / "token").write_text("mine")
            (tmp_path / "namespace").write_text("ns")
            monkeypatch.setattr(login, "ACCOUNT", tmp_path)
            monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
            host, port = secure.url.removeprefix("https://").split(":")
            monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)

        assert await client.get(POD) == FOUND
        await client.close()


@scripted
async def test_a_login_command_that_waits_for_its_user_is_quoted_and_ended(
    server, client, monkeypatch, tmp_path
):
    monkeypatch.setattr(login, "_LOGIN_S", 0.5)
    script, pid = tmp_path / "login", tmp_path / "pid"
    script.write_text(f"#!/bin/sh\necho $$ > {pid}\necho To sign in, open a page >&2\nexec sleep 600\n")
    script.chmod(0o755)
    kubeconfig(tmp_path / "kubeconfig", server.url, exec={"command": str(script)})

    with pytest.raises(ClusterError) as refusal:
        await client.get(POD)

    reason = "it gave no credential within 0 s and said: To sign in, open a page"
    assert str(refusal.value).startswith(f"the kubeconfig's login command failed: {reason}: run it by hand")
    await asyncio.to_thread(until, lambda: not (Path("/proc") / pid.read_text().strip()).exists())


@scripted
async def test_a_login_command_may_bring_a_certificate(server, client, tmp_path, strict_tls):
    status = {
        "clientCertificateData": (tmp_path / "ca.crt").read_text(),
        "clientKeyData": (tmp_path / "key.pem").read_text(),
    }
    version = "client.authentication.k8s.io/v1beta1"
    credential = {"apiVersion": version, "kind": "ExecCredential", "status": status}
    (tmp_path / "credential").write_text(json.dumps(credential))
    kubeconfig(
        tmp_path / "kubeconfig",
        "https://127.0.0.1:1",
        exec={"apiVersion": version, "command": "cat", "args": [str(tmp_path / "credential")]},
    )

    credentials = await login.log_in(None)

    await credentials.api.close()
    settings = credentials.api.configuration
    texts = [
        await asyncio.to_thread(Path(name).read_text) for name in (settings.cert_file, settings.key_file)
    ]
    assert texts == [status["clientCertificateData"], status["clientKeyData"]]


@pytest.mark.parametrize(
    "shape",
    ["paths of the second file", "an empty first file", "https without a user", "a command beside it"],
)
@scripted
async def test_what_kubectl_takes_for_a_kubeconfig_is_one(server, client, monkeypatch, tmp_path, tls, shape):
    first, second = tmp_path / "one", tmp_path / "two"
    certificate = {"client-certificate": "me.crt", "client-key": "me.key"}
    command = second / "login"
    for folder in (first, second):
        folder.mkdir()
    for name, source in (("me.crt", "ca.crt"), ("me.key", "key.pem")):
        shutil.copy(tmp_path / source, second / name)
    status = {"apiVersion": "v1", "kind": "ExecCredential", "status": {"token": "mine"}}
    command.write_text(f"#!/bin/sh\necho '{json.dumps(status)}'\n")
    command.chmod(0o755)
    own_command = {"exec": {"apiVersion": "v1", "command": "./login"}}
    user = own_command if shape == "a command beside it" else certificate
    document = config(user, {"server": "https://h"})
    if shape == "https without a user":
        document = config(
            None, {"server": "https://h"}, contexts=[{"name": "c", "context": {"cluster": "k"}}], users=[]
        )
    parts = {"users": document.pop("users")} if shape == "paths of the second file" else document
    (second / "config").write_text(yaml.safe_dump(parts))
    (first / "config").write_text("" if parts is document else yaml.safe_dump(document))
    monkeypatch.setenv("KUBECONFIG", f"{first / 'config'}:{second / 'config'}")
    monkeypatch.chdir(tmp_path)

    credentials = await login.log_in(None)

    assert (credentials.server, credentials.context) == ("https://h", "c")
    await credentials.api.close()


@scripted
async def test_a_login_command_that_fails_is_quoted(server, client, tmp_path, login_command):
    kubeconfig(tmp_path / "kubeconfig", server.url, **login_command)

    with pytest.raises(ClusterError, match=r"login command failed.*your session has ended") as refusal:
        await client.get(POD)
    assert "b'" not in str(refusal.value)
    assert server.asked == []


@scripted
@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("please log in", "it printed no JSON"),
        ("null", "it printed JSON that isn't a credential"),
        ("{}", "it printed JSON without 'apiVersion'"),
        ("$(kill -9 $$)", "it ended with code -9"),
    ],
)
async def test_a_login_command_without_a_credential_is_told_in_one_line(
    server, client, printed, reason, tmp_path
):
    script = tmp_path / "login"
    script.write_text(f"#!/bin/sh\necho {printed}\n")
    script.chmod(0o755)
    kubeconfig(
        tmp_path / "kubeconfig",
        server.url,
        exec={"apiVersion": "client.authentication.k8s.io/v1", "command": str(script)},
    )

    with pytest.raises(ClusterError) as refusal:
        await client.get(POD)
    assert str(refusal.value) == (
        f"the kubeconfig's login command failed: {reason}: run it by hand, or log in again"
    )


@scripted
@pytest.mark.parametrize("where", ["HTTPS_PROXY", "proxy-url of the kubeconfig"])
async def test_a_dead_proxy_is_named_with_where_it_is_set(server, client, tmp_path, monkeypatch, where):
    kubeconfig(tmp_path / "kubeconfig", "https://10.1.2.3:6443")
    if where == "HTTPS_PROXY":
        monkeypatch.setenv(where, "http://me:secret@127.0.0.1:9")
    else:
        text = (tmp_path / "kubeconfig").read_text()
        document = yaml.safe_load(text)
        document["clusters"][0]["cluster"]["proxy-url"] = "http://me:secret@127.0.0.1:9"
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))
    with pytest.raises(UnreachableError) as refusal:
        await client.get(POD)
    assert f"the proxy 127.0.0.1:9 ({where}) to the cluster at https://10.1.2.3:6443" in str(refusal.value)


@scripted
@pytest.mark.parametrize("user", [{"token": "mine"}, {}], ids=["a token", "nothing"])
async def test_a_netrc_is_no_login_to_a_cluster(server, client, monkeypatch, tmp_path, user):
    (tmp_path / "netrc").write_text("default login me password secret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    kubeconfig(tmp_path / "kubeconfig", server.url, **user)
    server.on(POD_PATH, Reply(body=FOUND))

    await client.get(POD)

    assert server.asked[-1].headers.get("authorization") == ("Bearer mine" if user else None)


@scripted
async def test_a_proxy_of_the_environment_leads_to_other_machines(server, client, tmp_path, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", server.url)
    kubeconfig(tmp_path / "kubeconfig", "http://cluster.example:6443")
    server.on(POD_PATH, Reply(body=FOUND))

    await client.get(POD)

    assert server.asked[-1].headers["host"] == "cluster.example:6443"


@scripted
async def test_no_proxy_leads_to_this_machine(server, client, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    server.on(POD_PATH, Reply(body=FOUND))

    await client.get(POD)


@scripted
async def test_inside_the_cluster_the_pods_own_account_is_used(server, client, monkeypatch, tmp_path, tls):
    (tmp_path / "token").write_text("of-the-pod")
    (tmp_path / "namespace").write_text("team\n")
    # A test can't write to the folder in which Kubernetes mounts the account.
    monkeypatch.setattr(login, "ACCOUNT", tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))

    async with Server(tls) as inside:
        host, port = inside.url.removeprefix("https://").split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        inside.on(POD_PATH, UNAUTHORIZED, Reply(body=FOUND))

        assert await client.namespace() == "team"
        (tmp_path / "token").write_text("renewed")
        await client.get(POD)
        await client.close()

    assert [request.headers["authorization"] for request in inside.asked] == [
        "Bearer of-the-pod",
        "Bearer renewed",
    ]


_PEM = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nnot one\n-----END CERTIFICATE-----\n").decode()
# How kubernetes 37, aiohttp 3, PyYAML 6 and Python word these faults.
_LIBRARIES = re.compile(
    r"Errno|object|NoneType|_ssl\.c|Invalid kube-config|does not exists|Expect\w+ (key|value)|indices|<stream"
)


def config(user=None, cluster=None, **parts):
    return {
        "current-context": "c",
        "clusters": [
            {"name": "k", "cluster": {"server": "https://127.0.0.1:1"} if cluster is None else cluster}
        ],
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "users": [{"name": "u", "user": {"token": "x"} if user is None else user}],
        **parts,
    }


def exec_(command):
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": command}}


def said(text_or_config, monkeypatch, tmp_path, context=None):
    """Return the error message of a login with this kubeconfig."""
    text = text_or_config if isinstance(text_or_config, str) else yaml.safe_dump(text_or_config)
    (tmp_path / "kubeconfig").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with pytest.raises(ClusterError) as refusal:
        loop.run(Client(context).namespace())
    return str(refusal.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("{ no: [", "isn't valid YAML at line 1: correct it, or log in again"),
        ("just words", "kubeconfig is no kubeconfig: expected lists of clusters, contexts, users"),
        ("[]", "kubeconfig is no kubeconfig: expected lists of clusters, contexts, users"),
        ("users: 3", "kubeconfig is no kubeconfig: expected lists of clusters, contexts, users"),
        ("", "has no current context: choose one with --context; available: none"),
        (
            config(**{"current-context": ""}),
            "has no current context: choose one with --context; available: c",
        ),
        (config(**{"current-context": "d"}), "has no context 'd': choose one with --context; available: c"),
        (config(contexts=[{"name": "c"}]), "it has no settings"),
        (config(contexts=[{"name": "c", "context": {"user": "u"}}]), "it names no cluster; available: k"),
        (config(clusters=[]), "its cluster k isn't defined; available: none"),
        (config(users=[{"name": "other"}]), "its user u isn't defined; available: other"),
        (config(users=[{"name": "u", "user": None}]), "its user u has no settings: log in again"),
        (config(cluster={"server": ""}), "its cluster k has no server"),
        (
            config(cluster={"server": "10.0.0.1:6443"}),
            "'10.0.0.1:6443', which is no address such as https://HOST:",
        ),
        (config(cluster={"server": "https://h:99999"}), "which is no address such as https://HOST:6443"),
        (config({"tokenFile": "/no/token"}), "has its token in /no/token, which can't be read (No such file"),
        (config({"client-certificate": "no.crt"}), "its client certificate in no.crt, which can't be read"),
        (config({"client-key": "kubeconfig"}), "its client key in kubeconfig, which holds none"),
        (config({"client-key-data": "!!!"}), "has client-key-data that is no client key in base64"),
        (
            config(cluster={"server": "https://h", "certificate-authority-data": "aGVsbG8="}),
            "has certificate-authority-data that is no certificate authority in base64",
        ),
        (config(exec_("no-such-login")), "logs in with no-such-login, which isn't installed: install it"),
        (config(exec_("./no-such-login")), "logs in with ./no-such-login, which isn't installed"),
        # A fault that only the loader finds.
        (
            config(cluster={"server": "https://h", "certificate-authority-data": _PEM}),
            "`kubectl --context c version`",
        ),
    ],
)
def test_a_wrong_kubeconfig_is_told_in_our_words(document, expected, monkeypatch, tmp_path):
    text = said(document, monkeypatch, tmp_path)

    assert expected in text
    assert not _LIBRARIES.search(text)


def test_a_context_without_a_user_is_one_for_who_needs_no_login(tmp_path):
    document = config(
        contexts=[{"name": "c", "context": {"cluster": "k"}}], users=[]
    )  # as for `kubectl proxy`
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document))

    assert Kubeconfig([str(tmp_path / "kubeconfig")]).check(None) == "c"


def test_an_unknown_context_is_told_with_those_that_there_are(monkeypatch, tmp_path):
    assert "no context 'e'" in said(config(), monkeypatch, tmp_path, "e")


def test_of_several_files_the_first_that_defines_a_name_decides(tmp_path):
    first, second = tmp_path / "one", tmp_path / "two"
    first.write_text(yaml.safe_dump(config({"tokenFile": "kubeconfig"}, **{"current-context": ""})))
    second.write_text(yaml.safe_dump(config(exec_("no-such-login"))))
    (tmp_path / "kubeconfig").write_text("a token")

    assert Kubeconfig([str(first), str(second)]).check(None) == "c"


def test_contexts_of_a_wrong_kubeconfig_are_none(monkeypatch, tmp_path):
    (tmp_path / "kubeconfig").write_text("[]")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

    assert contexts() == []
