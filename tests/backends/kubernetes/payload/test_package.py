"""The Secrets of a payload."""

import base64

import pytest

from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.payload import package
from nbtorchjob.state import JobInfo


@pytest.mark.parametrize("size", [1000, 2_000_000])
def test_a_long_source_makes_no_secret_too_big(size):
    info = JobInfo("train", sources={"a": ("cell", "x" * 1_100_000), "b": ("cell 2", "y")})

    secrets = package.manifests(info, {}, b"k" * 32, b"p" * size)

    sizes = [sum(len(base64.b64decode(text)) for text in secret["data"].values()) for secret in secrets]
    assert max(sizes) <= 1 << 20
    extra = base64.b64decode(secrets[0]["data"][package.EXTRA])
    assert labelling.with_extra(info, extra).sources == {"b": ("cell 2", "y")}
