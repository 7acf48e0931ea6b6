"""axe-core, which looks for what keeps people from using a page; its script is not ours to ship."""

import os
from pathlib import Path

import pytest

_LOOK = """async ([part, theme]) => {
  await jupyterapp.commands.execute("apputils:change-theme", {theme});
  const {violations} = await axe.run(part);
  return violations.map(({id, nodes}) => [id, nodes[0].html.slice(0, 200)]);
}"""


def violations(page, part, theme):
    """Return what axe finds wrong below the selector ``part``; skips if ``AXE_PATH`` names no axe.min.js."""
    path = os.environ.get("AXE_PATH")
    if not path:
        pytest.skip("AXE_PATH doesn't name an axe.min.js")
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(Path(path).read_text())
    return page.evaluate(_LOOK, [part, theme])
