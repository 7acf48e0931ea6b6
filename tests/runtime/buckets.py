"""A store of objects in memory: in it a folder that is made first would be a bucket."""

from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Buckets(MemoryFileSystem):  # type: ignore[misc]
    """Paths begin with a bucket's name, as those of S3, and no bucket is made by the way."""

    protocol = "buckets"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("buckets://").strip("/")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        raise AssertionError(f"somebody makes {path}")

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        # As s3fs does, and unlike fsspec's own: that makes the folder.
        self.pipe_file(rpath, Path(lpath).read_bytes())


class Patterns(Buckets):
    """Moves as gcsfs does (2026.10): a move of its own, which takes a name for a pattern all the same."""

    protocol = "patterns"
    async_impl = True
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("patterns://").strip("/")

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        super().mv(path1, path2, **options)


for store in (Buckets, Patterns):
    fsspec.register_implementation(store.protocol, store, clobber=True)
