"""Progress and outcomes of several runs in one process are separate."""

from concurrent.futures import ThreadPoolExecutor

from shardmill.pipelines import ImagesConfig, run
from shardmill.pipelines.images import outcomes, resolve
from shardmill.pipelines.report.terminal import progress_line
from shardmill.pipelines.runners.base import IN_MEMORY
from shardmill.transforms import Outcome
from shardmill.transforms.runtime import progress
from tests.conftest import make_photos


def test_work_is_counted_only_while_one_run_collects() -> None:
    first, second = progress.Progress(), progress.Progress()
    progress.current().add(5)
    with progress.collect(first):
        progress.current().add(1)
        with progress.collect(second):  # workers cannot be assigned to one of two runs
            progress.current().add(10)
            assert progress.is_collected()
        progress.current().add(2, 1)
    progress.current().add(5)
    assert not progress.is_collected()
    assert (first.done, first.rejects, second.done) == (3, 1, 0)


def test_no_more_than_everything_is_shown() -> None:
    """An analysis reads rows in several phases, and sizes are estimates: never over 100 %."""
    shown = progress.Progress(per_unit=1 << 20)
    shown.extend("analysing", 8 << 20)
    for _ in range(3):
        shown.add_once(("a.csv", 0), 4 << 20)
    assert "4.0 MiB of 8.0 MiB" in progress_line(shown, 1.0)
    shown.add(6 << 20)
    assert "8.0 MiB of 8.0 MiB" in progress_line(shown, 1.0)


def test_concurrent_runs_in_one_process_get_their_outcomes(tmp_path) -> None:
    counts = {"few": 3, "many": 11}

    def build(name: str) -> Outcome:
        source = make_photos(tmp_path / name, {"cat": counts[name]}, size=(20, 20))
        job = resolve(ImagesConfig(str(source), str(tmp_path / f"{name}-ds"), image_size="8"))
        made = run.run_pipeline(lambda root: outcomes(root, job), IN_MEMORY, [], job.sink.output)
        return made.outcome

    with ThreadPoolExecutor(2) as pool:
        found = dict(zip(counts, pool.map(build, counts), strict=True))
    assert {name: each.status for name, each in found.items()} == dict.fromkeys(counts, "published")
    assert {name: each.matched for name, each in found.items()} == counts
    assert not progress.is_collected()
