"""docs/_tools/check_site.py detects broken links and external resources."""

import importlib.util
import re
from types import ModuleType

from tests.conftest import ROOT


def checker() -> ModuleType:
    path = ROOT / "docs" / "_tools" / "check_site.py"
    spec = importlib.util.spec_from_file_location("check_site", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_detects_code_that_is_hard_to_read() -> None:
    """WCAG: #767676 on white has a contrast of 4.54, and #777 one of 4.48."""
    rules = (
        ".highlight { background: #fff }",
        ".highlight .go { color: #767676 }",
        ".highlight .gp { color: #777 }",
        "body .highlight { background: #000; color: #777 }",
        "body .highlight .gp { color: #333333 }",
    )
    faint = checker().faint_colours("\n".join(rules))
    assert [each.partition(":")[0] for each in faint] == [".highlight .gp", "body .highlight .gp"]


def test_detects_broken_links_and_external_resources(tmp_path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">A</h1><a href="b.html#here">b</a><a href="#top">t</a><img src="p.png">'
        '<a href="https://example.com/x">far</a><link href="style.css?v=1">'
    )
    (tmp_path / "b.html").write_text('<p id="here">b</p>')
    (tmp_path / "p.png").touch()
    (tmp_path / "style.css").touch()
    faults = checker().faults
    assert faults(tmp_path) == []
    (tmp_path / "b.html").write_text(
        '<a href="c.html">c</a><a href="a.html#nowhere">a</a><script src="//cdn.example/x.js">'
    )
    assert faults(tmp_path) == [
        "a.html links to b.html#here, and there is no such anchor",
        "b.html loads //cdn.example/x.js from elsewhere",
        "b.html links to c.html, which does not exist",
        "b.html links to a.html#nowhere, and there is no such anchor",
    ]


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "docs" / "index.md").read_text()
    listed = set()
    for tree in re.findall(r"^```\{toctree\}\n(.*?)```", text, re.DOTALL | re.MULTILINE):
        for line in tree.splitlines():
            if line and not line.startswith(":"):
                listed |= {path.stem for path in (ROOT / "docs").glob(f"{line}.md")}
    assert listed == {path.stem for path in (ROOT / "docs").rglob("*.md")} - {"index"}
