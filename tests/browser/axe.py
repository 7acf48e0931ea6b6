"""axe-core, which finds what keeps people from using a page; its script isn't ours to ship."""

import os
from pathlib import Path

import pytest

_INSTALLED = Path(__file__).parents[2] / "labextension" / "node_modules" / "axe-core" / "axe.min.js"
_THEME = "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})"
# While JupyterLab loads another theme's styles its pages are hidden.
_LOOK = """async part => {
  while (!document.querySelector(part)) await new Promise(requestAnimationFrame);
  const {violations} = await axe.run(part);
  const found = violations.flatMap(({id, nodes}) => nodes.map(node => ({id, ...node})));
  return found.map(({id, html, any}) => [id, html.slice(0, 200), any[0]?.message]);
}"""


def violations(page, part, theme):
    """Return the violations that axe finds below the selector ``part``, in a theme of JupyterLab's."""
    page.evaluate(_THEME, theme)
    return violations_of(page, part)


def violations_of(page, part):
    """Return what axe finds below the selector ``part``; ``AXE_PATH`` may name another axe.min.js."""
    path = Path(os.environ.get("AXE_PATH") or _INSTALLED)
    if not path.is_file():
        pytest.skip("axe-core isn't installed: `jlpm install` in labextension does it")
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(path.read_text())
    return page.evaluate(_LOOK, part)
