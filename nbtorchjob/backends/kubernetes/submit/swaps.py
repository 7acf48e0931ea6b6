"""A job's swaps, in a Secret that pods mount which start later: for jobs without ``--checkpoints``.

Whoever has swapped the code writes there, once the nodes have made the change. Nodes read it as they start,
and agree on the newest swap that one of them has (``runtime/node/kept.py``), as their hosts may learn of a
change at different times.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping

from nbtorchjob.backends.base import SwapKeeper
from nbtorchjob.backends.kubernetes.jobs.ref import JobRef
from nbtorchjob.backends.kubernetes.objects import labelling
from nbtorchjob.backends.kubernetes.objects.paths import SECRETS, Target
from nbtorchjob.backends.kubernetes.payload import package
from nbtorchjob.backends.kubernetes.submit.attempts import reference
from nbtorchjob.errors import AlreadyExistsError, NotFoundError, SwapError
from nbtorchjob.machine import loop
from nbtorchjob.text import words


class SecretKeeper(SwapKeeper):
    """Keeps swaps in the Secret of that name, which had payloads of these sizes, by number, before a swap.

    Those of the swap's own number and above are of an attempt that another one has begun without them.
    """

    def __init__(self, job: JobRef, name: str, sizes: Mapping[int, int]) -> None:
        self._job = job
        self._name = name
        self._target = Target(SECRETS, job.scope.namespace, name)
        self._sizes = sizes

    def keep(self, number: int, payload: bytes, earlier: Collection[int]) -> None:
        """Write it, unless the Secret lacks earlier ones, or has no room."""
        sizes = {other: size for other, size in self._sizes.items() if other < number}
        if missing := {*earlier} - sizes.keys():
            raise SwapError(f"swap {min(missing)} isn't kept, and they are made in their order")
        total = sum(sizes.values()) + len(payload)
        if total > package.SECRET_BYTES:
            raise SwapError(
                f"all swaps together take {words.size(total)}, and a Secret holds "
                f"{words.size(package.SECRET_BYTES)}; a job with --checkpoints keeps them there"
            )
        outdated = {_key(other): None for other in self._sizes if other > number}
        loop.run(self._write({_key(number): base64.b64encode(payload).decode(), **outdated}))

    async def _write(self, data: Mapping[str, str | None]) -> None:
        client, patch = self._job.session.client, {"data": data}
        try:
            await client.patch(self._target, patch)
        except NotFoundError:
            root = self._job.root
            secret = package.swaps(self._name, labelling.shared(root), reference(root))
            secret["data"] = {key: text for key, text in data.items() if text is not None}
            try:
                await client.create(SECRETS, self._target.namespace, secret)
            except AlreadyExistsError:  # whoever makes the next swap was here first
                await client.patch(self._target, patch)


async def keeper(job: JobRef) -> SecretKeeper | None:
    """Return what keeps a job's next swap; None where nodes do. Raises ``ClusterError``."""
    name = package.swaps_name(job.info.asked, job.info)
    if not name:
        return None
    try:
        secret = await job.session.client.get(Target(SECRETS, job.scope.namespace, name))
    except NotFoundError:
        return SecretKeeper(job, name, {})
    held = package.data(secret).items()
    sizes = {int(key.partition(".")[0]): len(text) * 3 // 4 for key, text in held if _KEY.fullmatch(key)}
    return SecretKeeper(job, name, sizes)


_KEY = re.compile(r"[1-9]\d{0,8}\.payload")


def _key(number: int) -> str:
    """Return the key of a swap's payload: the name of its file, as nodes have it."""
    return f"{number}.payload"
