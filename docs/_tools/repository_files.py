"""Shows files of the repository that pages link to (examples, settings) as pages of the site."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx import addnodes
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "files"


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("doctree-resolved", _link)
    app.connect("html-collect-pages", _pages)
    return {"parallel_read_safe": True, "parallel_write_safe": False}


def _link(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Makes links of what would be downloads, to pages that show the files."""
    for node in list(doctree.findall(addnodes.download_reference)):
        path = (Path(app.srcdir) / Path(page).parent / node["reftarget"]).resolve()
        if not path.is_relative_to(ROOT) or not path.is_file():
            continue
        name = path.relative_to(ROOT).as_posix()
        app.env.repository_files = getattr(app.env, "repository_files", set()) | {name}
        link = nodes.reference("", "", *node.children, internal=True)
        link["refuri"] = app.builder.get_relative_uri(page, f"{FOLDER}/{name}")
        node.replace_self(link)


def _pages(app: Sphinx) -> Iterator[tuple[str, dict[str, str], str]]:
    for name in sorted(getattr(app.env, "repository_files", ())):
        text = (ROOT / name).read_text(encoding="utf-8")
        try:
            lexer = get_lexer_for_filename(name)
        except ClassNotFound:
            lexer = TextLexer()
        code = HtmlFormatter(cssclass="highlight", wrapcode=True)
        from pygments import highlight

        title = os.path.basename(name)
        body = f'<section><h1>{title}</h1><p><code class="literal">{name}</code></p>'
        body += f'<div class="highlight-default notranslate">{highlight(text, lexer, code)}</div>'
        yield f"{FOLDER}/{name}", {"title": title, "body": body + "</section>"}, "page.html"
