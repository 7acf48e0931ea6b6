"""Who enforces one of a job's policies or budgets."""

from __future__ import annotations

from nbtorchjob.frozen import FrozenDataclass


class Enforced(FrozenDataclass):
    """Who enforces one policy: each text says how, or why, and is empty for whoever has no part in it."""

    natively: str = ""
    by_us: str = ""
    refused: str = ""

    @property
    def who(self) -> str:
        """Who, in a few words."""
        return " and ".join(self._texts())

    def __str__(self) -> str:
        return "; ".join(f"{who}: {text}" for who, text in self._texts().items())

    def _texts(self) -> dict[str, str]:
        found = {"natively": self.natively, "by us": self.by_us, "refused": self.refused}
        return {who: text for who, text in found.items() if text}
