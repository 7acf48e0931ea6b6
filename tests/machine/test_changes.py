"""Who waits for a file is told when it was written to."""

import asyncio

from nbtorchjob.machine.changes import Changes
from tests.patience import LIMIT

FOR_EVER = 1e6  # seconds


def told(path, act):
    """Wait for a change of ``path`` once ``act`` was done; raises ``TimeoutError`` where none is told."""

    async def wait():
        changes = Changes(path)
        try:
            act()
            await asyncio.wait_for(changes.wait(FOR_EVER), LIMIT)
        finally:
            changes.close()

    asyncio.run(wait())


def test_a_write_ends_the_wait(tmp_path):
    file = tmp_path / "events"
    file.touch()
    told(file, lambda: file.write_text("fact\n"))


def test_a_write_while_nobody_waits_counts(tmp_path):
    file = tmp_path / "events"
    file.touch()

    async def wait():
        changes = Changes(file)
        for _ in range(2):
            file.write_text("fact\n")
            await asyncio.wait_for(changes.wait(FOR_EVER), LIMIT)
        changes.close()
        changes.close()

    asyncio.run(wait())


def test_without_a_file_the_time_ends_the_wait(tmp_path):
    async def wait():
        changes = Changes(tmp_path / "none")
        await changes.wait(0.001)
        changes.close()

    asyncio.run(asyncio.wait_for(wait(), LIMIT))
