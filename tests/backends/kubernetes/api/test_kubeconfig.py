"""What is wrong with a kubeconfig, in our words: the loader's own are an accident of its code."""

import base64
import re

import pytest
import yaml

from nbtorchjob.backends.kubernetes.api.client import Client
from nbtorchjob.backends.kubernetes.api.kubeconfig import Kubeconfig, contexts
from nbtorchjob.errors import ClusterError
from nbtorchjob.machine import loop

_PEM = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nnot one\n-----END CERTIFICATE-----\n").decode()
# Words of kubernetes 37, aiohttp 3, PyYAML 6 and Python for these faults.
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
    """Return what a login says with this kubeconfig."""
    text = text_or_config if isinstance(text_or_config, str) else yaml.safe_dump(text_or_config)
    (tmp_path / "kubeconfig").write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    with pytest.raises(ClusterError) as refusal:
        loop.run(Client(context).namespace())
    return str(refusal.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(
    ("written", "expected"),
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
        # What only the loader finds out.
        (
            config(cluster={"server": "https://h", "certificate-authority-data": _PEM}),
            "`kubectl --context c version`",
        ),
    ],
)
def test_a_wrong_kubeconfig_is_told_in_our_words(written, expected, monkeypatch, tmp_path):
    text = said(written, monkeypatch, tmp_path)

    assert expected in text
    assert not _LIBRARIES.search(text)


def test_a_context_without_a_user_is_one_for_who_needs_no_login(tmp_path):
    written = config(
        contexts=[{"name": "c", "context": {"cluster": "k"}}], users=[]
    )  # as for `kubectl proxy`
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(written))

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
