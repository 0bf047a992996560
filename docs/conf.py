"""How Sphinx builds the docs site: ``make docs``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_tools"))

SETUP = (HERE.parent / "setup.py").read_text(encoding="utf-8")
REPOSITORY = re.findall(r'^REPOSITORY = "(.+)"', SETUP, re.MULTILINE)[0]

project = "Shardmill"
author = "The authors of Shardmill"
release = version = re.findall(r'^    version="(.+)"', SETUP, re.MULTILINE)[0]
html_title = f"Shardmill {release}"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "repository_files",
]
exclude_patterns = ["_tools"]
myst_heading_anchors = 4  # links to headings, as GitHub makes them
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
html_static_path = ["_static"]
html_favicon = "_static/favicon.svg"
html_css_files = ["shardmill.css"]
html_show_sphinx = False
html_show_copyright = False
html_copy_source = False
html_theme_options = {
    "navigation_with_keys": True,
    "source_repository": f"{REPOSITORY}/",  # each page links to its source, to view and to edit
    "source_branch": "main",
    "source_directory": "docs/",
    "footer_icons": [{"name": "Repository", "url": REPOSITORY, "html": "Repository", "class": ""}],
}
# Their contrast is 4.5 or more, also of the output of commands; they come with the theme.
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_only_copy_prompt_lines = True

# The reference is made of docstrings; what only training needs is not imported for it.
autodoc_mock_imports = ["grain", "jax", "keras", "tensorflow", "torch"]
python_maximum_signature_line_length = 88
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    from pygments.lexers import ProtoBufLexer

    app.add_lexer("textproto", ProtoBufLexer)
    app.connect("source-read", _without_empty_globs)
    app.connect("source-read", _with_help_of_commands)


def _with_help_of_commands(_: Sphinx, page: str, source: list[str]) -> None:
    """Adds the help of each command to the page of commands."""
    if page == "cli":
        from shardmill.pipelines.commands import COMMANDS, find_parser

        helps = [f"## {name}\n\n```text\n{find_parser(name).format_help()}```" for name in COMMANDS]
        source[0] = "\n\n".join([source[0], *helps])


def _without_empty_globs(_: Sphinx, page: str, source: list[str]) -> None:
    """Lists pages of deployments where they are there, and warns of none that is not."""
    if page == "index":
        lines = source[0].splitlines()
        source[0] = "\n".join(
            line for line in lines if not line.endswith("*") or any(HERE.glob(f"{line}.md"))
        )
