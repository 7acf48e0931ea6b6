"""The generated pages of the documentation: each is made from the code's own tables (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from docs._generate import errors, kinds, options, permissions, policies

PAGES: Mapping[str, Callable[[], str]] = {
    "errors.md": errors.page,
    "kinds.md": kinds.page,
    "options.md": options.page,
    "permissions.md": permissions.page,
    "run-policy.md": policies.page,
}
