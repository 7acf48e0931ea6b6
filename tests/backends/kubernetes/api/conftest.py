"""Fixtures of the API tests: a server's TLS."""

import shutil
import ssl
import subprocess

import pytest


@pytest.fixture
def tls(tmp_path):
    """Return a server's TLS context; its certificate authority is ``ca.crt`` in ``tmp_path``."""
    return _tls(tmp_path)


@pytest.fixture
def strict_tls(tmp_path, monkeypatch):
    """Return such a context; its authority lacks key identifiers, which are demanded as by Python 3.13."""
    context = _tls(tmp_path, "-addext", "subjectKeyIdentifier=none", "-addext", "authorityKeyIdentifier=none")
    make = ssl.create_default_context

    def strict(*args, **options):
        made = make(*args, **options)
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        return made

    monkeypatch.setattr(ssl, "create_default_context", strict)
    return context


def _tls(folder, *extensions):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = folder / "key.pem", folder / "ca.crt"
    about = ["-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1", *extensions]
    arguments = ["req", "-x509", "-nodes", "-newkey", "rsa:2048", "-keyout", key, "-out", certificate]
    subprocess.run(["openssl", *arguments, *about], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
