"""Write the table of docs/promises.md: each promise, how it is attacked, and in how many cases.

usage: python docs/_tools/promises.py

pytest counts the cases that `make soak` runs of the named test files. No file belongs in the table
whose cases depend on the machine, such as those on real data.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "promises.md"


class Promise(NamedTuple):
    """One row of the table.

    Attributes:
        text: What is promised.
        attack: What the tests do to break it.
        files: The test files, relative to ``tests/``.
        limits: Where the promise ends, or what is not attacked.
    """

    text: str
    attack: str
    files: tuple[str, ...]
    limits: str


BUILDS = (
    Promise(
        "The same inputs and options give the same bytes",
        "Other numbers of processes, threads and workers; local disks and buckets",
        ("pipelines/test_builds.py", "pipelines/test_builds_gcs.py"),
        "Same versions of the codecs; `make test-flink`, `test-prism` and `test-dataflow` compare "
        "runners",
    ),
    Promise(
        "A build that is killed or interrupted is finished by the same command, with the same "
        "bytes",
        "Signals before each change of the file system, to one process or all, also twice; damaged "
        "parts; killed workers",
        (
            "pipelines/test_builds_killed.py",
            "pipelines/commands/test_signals.py",
            "pipelines/runners/test_in_memory.py",
        ),
        "Linux signals only",
    ),
    Promise(
        "A failure ends in one sentence and leaves the published dataset whole",
        "Each change of the disk, and each call of a bucket, fails once or for good, also after it "
        "was carried out; disks become full or read-only",
        ("faults/test_permanent_failures.py", "pipelines/test_images_faults.py"),
        "Changes are counted by calls of Python; what the system does inside a call is not divided",
    ),
    Promise(
        "A power failure leaves the old or the new dataset",
        "The disk is copied before each change, and the copy mounted",
        ("faults/test_power_loss.py",),
        "ext4 in a file; needs root",
    ),
    Promise(
        "A condition that passes is not remembered",
        "Inputs and catalogs that cannot be read in one or two runs; random faults of a bucket",
        ("faults/test_transient_failures.py", "cluster/test_gcs_faults.py"),
        "An emulator of gs://",
    ),
    Promise(
        "An input that changes is noticed",
        "Files that are edited, swapped or replaced at moments of a build, also with an equal size "
        "and time",
        ("faults/test_changing_inputs.py", "pipelines/test_edited_tables.py"),
        "Where no ctime is kept, only `--update=content` notices an equal size and time",
    ),
    Promise(
        "Builders of one output do not harm each other",
        "Two builders whose calls a seeded schedule delays; cleaning and rollbacks meanwhile",
        (
            "transforms/publish/test_races.py",
            "transforms/publish/test_cleanup.py",
            "cluster/test_gcs_races.py",
        ),
        "On s3:// only with conditional writes",
    ),
    Promise(
        "An update equals a new build",
        "Random sequences of edits of files, labels and options; damaged and swapped shards",
        ("transforms/sink/test_update.py",),
        "Images; tables and arrays are built in full",
    ),
    Promise(
        "A hostile file costs one record",
        "Files that crash, stop or starve a decoder, or forge its replies; damaged archives",
        (
            "transforms/images/test_decoder_pool.py",
            "transforms/images/test_containers.py",
            "pipelines/test_rows_faults.py",
        ),
        "A decoder runs as the user, without credentials, and is not a sandbox",
    ),
    Promise(
        "A call from Python leaves no process",
        "Scripts, threads, forks and notebooks that die at moments of a build",
        ("pipelines/test_dead_callers.py",),
        "Linux",
    ),
    Promise(
        "`verify` finds damage and edits, or lists what it cannot prove",
        "Each byte of a shard; each value of a manifest and of a catalog, with new checksums",
        (
            "transforms/verify/test_edits.py",
            "schemas/tfrecord/test_damage.py",
            "schemas/dataset/test_hostile_files.py",
        ),
        "[What no check proves](counting.md#what-no-check-proves)",
    ),
)
READERS = (
    Promise(
        "Each pass reads each record of one epoch once",
        "Looks, breaks, exceptions, slow and killed workers, forks, other start methods, several "
        "loaders of one stream; an interrupt in each line of the log of epochs",
        ("loaders/test_passes.py", "loaders/test_epoch_log.py"),
        "`keras_dataset` has no state; `DataLoader(in_order=False)` has no position",
    ),
    Promise(
        "`stream.stats()` adds up what all processes of a stream have read",
        "Passes that end early, killed workers, start methods, several loaders; a transform that "
        "writes what it gets, and a storage that writes what it reads, are the judges",
        ("loaders/test_stats.py",),
        "A worker that is killed between a record and its count",
    ),
    Promise(
        "Training continues in the middle of an epoch with other hosts and workers",
        "Jobs that are killed at random and start again with other numbers",
        ("loaders/test_elastic.py",),
        "With `limit` and a predicate, the same number of hosts",
    ),
    Promise(
        "A mix has the share of each dataset in any number of examples, within one, and each "
        "example of a dataset once before it repeats",
        "Random datasets, weights, ends of an epoch, hosts, workers, interruptions and changes of "
        "all; a plain loop judges the turns, and a count of keys the rest",
        ("loaders/test_mix.py", "loaders/test_mixture.py"),
        "Whole weights that add up to at most 100,000 without common divisors",
    ),
    Promise(
        "The order is a uniform permutation, and stays that of a release",
        "Chi-square of places and distances; pinned orders; reads of each host",
        ("loaders/test_order.py",),
        "In blocks, as well mixed as the window is large",
    ),
    Promise(
        "A reader sees one version",
        "Updates, rollbacks and cleaning before each change of a publication",
        ("loaders/test_read_while_published.py",),
        "A version that is not kept ends the reader with a sentence",
    ),
)


def count_cases(files: set[str]) -> Counter[str]:
    """Return the number of cases of test files that `make soak` runs."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *sorted(files)]
    environment = {**os.environ, "SHARDMILL_SOAK": "1"}
    folder = ROOT / "tests"
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    names = (line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line)
    return Counter(name.removeprefix("tests/") for name in names)


def table(promises: tuple[Promise, ...], cases: Counter[str]) -> str:
    """Return promises as a table."""
    lines = ["| promise | attacked by | cases | limits |", "|---|---|---|---|"]
    for promise in promises:
        count = sum(cases[name] for name in promise.files)
        places = ", ".join(f"[{Path(name).stem}](../tests/{name})" for name in promise.files)
        lines.append(
            f"| {promise.text} | {promise.attack}: {places} | {count} | {promise.limits} |"
        )
    return "\n".join(lines) + "\n"


def make_page(page: str) -> str:
    """Return the page with new tables."""
    tables = {"builds": BUILDS, "readers": READERS}
    files = {name for promises in tables.values() for promise in promises for name in promise.files}
    cases = count_cases(files)
    for name, promises in tables.items():
        begin, rest = page.split(f"<!-- {name} -->\n")
        _, end = rest.split("<!-- end -->\n", 1)
        page = f"{begin}<!-- {name} -->\n{table(promises, cases)}<!-- end -->\n{end}"
    return page


if __name__ == "__main__":
    PAGE.write_text(make_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
