"""Take the screenshots of docs/airflow.md: both DAGs after a run, in Airflow's web interface.

usage: AIRFLOW_ENV=$(deploy/airflow/install.sh) python deploy/airflow/screenshots.py docs

Needs the packages of `.[dev,look]` and Chromium. Starts a temporary Airflow, builds a small
dataset, trains on it, and deletes all temporary files.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_tools")]
from look import FLAGS, chromium  # noqa: E402

from tests.conftest import make_photos  # noqa: E402
from tests.support.airflow_server import SHARDMILL, Airflow, run_airflow, wait_until  # noqa: E402

SIZE = {"width": 1440, "height": 360}
# Settings in the browser's storage: show the graph with its assets, from left to right, and wide.
BROWSER_SETTINGS = """(id) => {
  localStorage.setItem("default_dag_view", JSON.stringify("graph"));
  localStorage.setItem(`direction-${id}`, JSON.stringify("RIGHT"));
  localStorage.setItem(`dependencies-${id}`, JSON.stringify("all"));
  const wide = {"details-panel,main-panel": {expandToSizes: {}, layout: [80, 20]}};
  localStorage.setItem("react-resizable-panels:graph-ltr", JSON.stringify(wide));
}"""
DAY = "2026-11-20"
SETTINGS = """
shardmill = {shardmill}
[datasets.flowers]
command = "images"
input = "{base}/raw/{{{{ day() }}}}"
output = "{base}/ds/{{{{ day() }}}}"
flags = ["--image_size=64"]
check = ["--min_examples=train:10"]
start = 2026-11-01
[training.flowers]
steps = ["--split=train", "--batch_size=4"]
command = [{python}, "-c", "print('trained')", "{{{{ dataset() }}}}", "{{{{ steps() }}}}"]
"""


def run_both(airflow: Airflow) -> None:
    """Run both DAGs until they end."""
    wait_until(lambda: len(airflow.call("/dags")["dags"]) == 2)
    run = airflow.trigger("shardmill_flowers", DAY, day=DAY)
    assert set(run.wait().values()) == {"success"}
    (training,) = wait_until(lambda: airflow.runs("shardmill_flowers_training"))
    assert set(training.wait().values()) == {"success"}


def take(page: Page, airflow: Airflow, dag_id: str, path: Path) -> None:
    """Take the screenshot of a DAG's graph, with the states of its run."""
    (run,) = airflow.runs(dag_id)
    base = f"http://127.0.0.1:{airflow.port}"
    page.goto(base)
    page.evaluate(BROWSER_SETTINGS, dag_id)
    page.goto(f"{base}/dags/{dag_id}/runs/{run.run_id}")
    page.get_by_text("CommandOperator").first.wait_for()
    page.add_style_tag(content=".react-flow__panel { display: none }")  # it covers the graph
    page.wait_for_timeout(2000)  # the graph is animated
    box = page.locator(".react-flow").bounding_box()
    assert box is not None
    box["width"] -= 16  # the handle of the adjacent panel
    page.screenshot(path=path, clip=box)
    print(path, path.stat().st_size)


def main(folder: Path) -> None:
    """Write both screenshots to a folder."""
    base = Path(tempfile.mkdtemp(prefix="shardmill-airflow-"))
    make_photos(base / "raw" / DAY, {"daisy": 20, "rose": 20})
    settings = base / "settings.toml"
    shown = {"shardmill": json.dumps(str(SHARDMILL)), "python": json.dumps(sys.executable)}
    settings.write_text(SETTINGS.format(base=base, **shown))
    (base / "home").mkdir()
    with run_airflow(base / "home", settings) as airflow, sync_playwright() as playwright:
        run_both(airflow)
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        page = browser.new_page(viewport=SIZE, color_scheme="light", device_scale_factor=1.5)
        for dag_id in ("shardmill_flowers", "shardmill_flowers_training"):
            name = dag_id.replace("shardmill_flowers", "airflow").replace("_", "-")
            take(page, airflow, dag_id, folder / f"{name}-dag.png")
        browser.close()
    shutil.rmtree(base)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
