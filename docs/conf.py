"""How Sphinx builds the documentation: `make docs`.

The sources are the whole checkout, so that a page has the same links on the site as where the code is read.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import nbtorchjob  # noqa: E402

project = "nbtorchjob"
author = "the nbtorchjob contributors"
version = release = nbtorchjob.__version__
html_title = f"nbtorchjob {version}"

root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/api/*.md",
    "notebooks/*.ipynb",
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "tests/frameworks/cells.md",
]

extensions = ["myst_nb", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # the tutorials' stored outputs come from whole trainings, and are tested elsewhere

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

html_theme = "furo"
html_extra_path = ["site"]  # relative to this file: the address without a page leads to the index
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["../labextension/node_modules/mermaid/dist/mermaid.min.js", "mermaid.js"]


def setup(app: Sphinx) -> None:
    """Let the browser draw blocks of Mermaid.

    Not sphinxcontrib-mermaid: it loads a JavaScript module, as no browser does for a page opened as a file.
    """
    app.add_lexer("mermaid", TextLexer)
    app.connect("html-page-context", _load_mermaid)


def _load_mermaid(app: Sphinx, page: str, _template: str, _context: Any, tree: nodes.document | None) -> None:
    if tree and any(block.get("language") == "mermaid" for block in tree.findall(nodes.literal_block)):
        app.add_js_file("mermaid.min.js")
        app.add_js_file("mermaid.js")
