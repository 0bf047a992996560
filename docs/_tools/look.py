"""Check the built docs site in Chromium: no page scrolls sideways, all resources load.

usage: python docs/_tools/look.py build/docs build/look

Every page is opened at the width of a phone and of a desk; one that scrolls sideways, logs an
error or loads a resource of another site causes exit code 1. Pictures of some pages, light
and dark, are written to the second folder. As root on Debian, Chromium is installed if it is
missing.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from playwright.sync_api import Browser, Request, sync_playwright
from playwright.sync_api import TimeoutError as NotInTime

SIZES = {"phone": (390, 844), "desk": (1440, 900)}
PICTURES = ("index", "getting-started", "format", "troubleshooting", "architecture", "training")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDER = """() => {
  const page = document.documentElement;
  if (page.scrollWidth <= page.clientWidth) return null;
  const wide = [...document.querySelectorAll("article *")].filter(
    (one) => one.getBoundingClientRect().right > page.clientWidth + 1
      && !one.closest(".table-wrapper, .highlight, pre"));
  return page.scrollWidth + " px: " + (wide[0] ? wide[0].outerHTML.slice(0, 200) : "?");
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, *_: object) -> None:
        """Says nothing."""


def chromium() -> str:
    """Returns the path of a Chromium; installs Debian's where none is."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        sys.exit("No chromium is on the PATH: install one (on Debian: apt-get install chromium).")
    print("Installing Debian's chromium")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for arguments in (
        ["update", "-qq"],
        ["install", "-y", "-qq", "--no-install-recommends", "chromium"],
    ):
        command = ["apt-get", *arguments]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return chromium()


def failure_of(request: Request) -> list[str]:
    """Returns what failed, but for what the next page cut off."""
    why = request.failure or ""
    return [] if "ERR_ABORTED" in why else [f"{request.url}: {why}"]


def far_of(request: Request, base: str) -> list[str]:
    """Returns what is asked for elsewhere."""
    near = request.url.startswith((base, "data:"))
    return [] if near else [f"{request.url} is asked for"]


def open_all(browser: Browser, base: str, names: list[str], size: str) -> list[str]:
    """Opens each page once; returns what is wrong, a line each."""
    width, height = SIZES[size]
    context = browser.new_context(viewport={"width": width, "height": height})
    page = context.new_page()
    found: list[str] = []
    page.on(
        "console", lambda said: said.type == "error" and found.append(f"{page.url}: {said.text}")
    )
    page.on("pageerror", lambda error: found.append(f"{page.url}: {error}"))
    page.on("request", lambda request: found.extend(far_of(request, base)))
    page.on("requestfailed", lambda request: found.extend(failure_of(request)))
    for name in names:
        page.goto(f"{base}/{name}")
        if wider := page.evaluate(WIDER):
            found.append(f"{name} is wider than a {size}: {wider}")
    context.close()
    return found


def take_pictures(browser: Browser, base: str, folder: Path) -> None:
    """Puts a picture of each chosen page, size and colour scheme into a folder."""
    for size, (width, height) in SIZES.items():
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            page = context.new_page()
            for name in PICTURES:
                page.goto(f"{base}/{name}.html")
                page.screenshot(path=folder / f"{name}-{size}-{scheme}.png")
                # What stands further down, as far as three screens.
                clip = {"x": 0, "y": 0, "width": width, "height": height * 3}
                page.screenshot(
                    path=folder / f"{name}-{size}-{scheme}-long.png", clip=clip, full_page=True
                )
            context.close()


def search_works(browser: Browser, base: str) -> list[str]:
    """Searches for a word as a reader does; returns what is wrong."""
    page = browser.new_page()
    page.goto(f"{base}/search.html?q=overwrite")
    results = page.locator("#search-results li")
    with contextlib.suppress(NotInTime):  # counted as none below
        results.first.wait_for(timeout=20_000)
    found = results.count()
    page.close()
    return [] if found > 2 else [f"a search for 'overwrite' finds {found} pages"]


def main() -> None:
    """Ends with exit code 1 where something is wrong."""
    site, folder = (Path(name).resolve() for name in sys.argv[1:3])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    names = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        found = [fault for size in SIZES for fault in open_all(browser, base, names, size)]
        found += search_works(browser, base)
        take_pictures(browser, base, folder)
        browser.close()
    server.shutdown()
    print(
        "\n".join(found) or f"{len(names)} pages fit a phone and a desk; pictures are in {folder}"
    )
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
