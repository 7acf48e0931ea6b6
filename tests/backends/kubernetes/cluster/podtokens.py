"""Tokens of pods' service accounts, as in a projected volume: for one audience, and with an expiry."""

import base64
import hashlib
import hmac
import json
import secrets
import time

from tests.backends.kubernetes.cluster.resources import Object

_KEY = secrets.token_bytes()


def issue(namespace: str, audience: str, seconds: int) -> str:
    """Return a token for a pod in the namespace."""
    claims = {"aud": [audience], "exp": time.time() + seconds, "kubernetes.io": {"namespace": namespace}}
    parts = [_coded(json.dumps(part).encode()) for part in ({"alg": "HS256"}, claims)]
    return ".".join([*parts, _signed(".".join(parts))])


def claims(token: str) -> Object:
    """Return a token's claims; none if it isn't valid."""
    content, _, signature = token.rpartition(".")
    if not hmac.compare_digest(_signed(content), signature):
        return {}
    payload: Object = json.loads(base64.urlsafe_b64decode(content.partition(".")[2] + "=="))
    return payload if payload["exp"] > time.time() else {}


def _signed(text: str) -> str:
    return _coded(hmac.digest(_KEY, text.encode(), hashlib.sha256))


def _coded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
