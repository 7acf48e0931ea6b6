"""Fixtures of the API tests: a server's TLS."""

import shutil
import ssl
import subprocess

import pytest


@pytest.fixture
def tls(tmp_path):
    """Return a server's TLS context; its certificate authority is ``ca.crt`` in ``tmp_path``."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    key, certificate = tmp_path / "key.pem", tmp_path / "ca.crt"
    about = ["-subj", "/CN=kubernetes", "-addext", "subjectAltName=IP:127.0.0.1"]
    arguments = ["req", "-x509", "-nodes", "-newkey", "rsa:2048", "-keyout", key, "-out", certificate]
    subprocess.run(["openssl", *arguments, *about], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context
