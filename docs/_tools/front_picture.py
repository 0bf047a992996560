"""Make the picture of the README: a build in a terminal, and the examples of its report.

usage: python docs/_tools/front_picture.py PICTURE.png
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from look import FLAGS, chromium
from playwright.sync_api import sync_playwright

PAGE = """<!doctype html><meta charset="utf-8"><style>{style}
body {{ margin: 0; padding: 24px; width: 1232px; height: 470px; max-width: none; display: flex;
  gap: 24px; background: #eef1f4; overflow: hidden; }}
.shell {{ flex: 0 0 640px; overflow: hidden; border-radius: 10px;
  background: #14181d; color: #e3e8ee;
  padding: 18px 20px; font: 13px/1.55 ui-monospace, "DejaVu Sans Mono", monospace;
  white-space: pre-wrap; margin: 0; }}
.page {{ flex: 1; background: #fff; border-radius: 10px; padding: 0 22px; overflow: hidden; }}
.page section {{ margin: 0; }}
.page .filter {{ display: none; }}
.page .sheets {{ display: block; }}
.page .sheet {{ max-width: none; }}
.page .pictures {{ display: flex; }}
.page .pictures img {{ width: 72px; height: 72px; }}
</style><pre class="shell">{shell}</pre><div class="page">{examples}</div>"""


def run(folder: Path, *words: str) -> str:
    """Returns a command line as it is typed, and what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "shardmill", *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return f"$ shardmill {' '.join(words)}\n{done.stdout.replace(str(folder), '~')}\n"


def main(picture: Path) -> None:
    """Builds, reports, and takes the picture."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder, "demo", "demo")
        shell = run(folder, "images", "demo/photos", "ds", "--image_size=96")
        shell += run(folder, "steps", "ds", "--split=train", "--batch_size=32")
        shell += run(folder, "report", "ds")
        report = (folder / "ds-report.html").read_text(encoding="utf-8")
        style = "".join(re.findall(r"<style>(.*?)</style>", report, re.DOTALL))
        (examples,) = re.findall(
            r'<section aria-labelledby="examples">.*?</section>', report, re.DOTALL
        )
        page = folder / "page.html"
        filled = PAGE.format(style=style, shell=html.escape(shell), examples=examples)
        page.write_text(filled, encoding="utf-8")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
            shown = browser.new_page(viewport={"width": 1232, "height": 470}, color_scheme="light")
            shown.goto(page.as_uri())
            shown.screenshot(path=picture)
            browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
