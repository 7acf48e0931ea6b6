"""An object store in memory: making a folder there first would make a bucket."""

from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem


class Buckets(MemoryFileSystem):  # type: ignore[misc]
    """A file system in which paths begin with a bucket's name, as in S3, and making a folder is an error."""

    protocol = "buckets"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("buckets://").strip("/")

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        raise AssertionError(f"somebody makes {path}")

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        # Like s3fs, and unlike fsspec's own method, which makes the folder.
        self.pipe_file(rpath, Path(lpath).read_bytes())


class Patterns(Buckets):
    """A file system with a move of its own, like gcsfs (2026.10), which still takes a name for a pattern."""

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
