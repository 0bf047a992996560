"""Change the code in many small ways, and report the changes that no quick test notices.

make mutants RESULTS=before.json, and later make mutants RESULTS=after.json LIKE=before.json for the
same changes in the code of that day. A copy of the last commit has all changes, each behind a
switch that child processes see too. A first run of the quick tests records which of them reach a
switch; then each is turned on for these tests alone. A run that was stopped continues.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
import pytest

sys.path.append(str(Path(__file__).parent))
from mutations import Mutant, choose, find_again, find_mutants

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("api", "pipelines", "transforms", "schemas", "loaders")
OUTCOMES = ("killed", "timed out", "survived", "no covering test", "error")
FAULT = 99  # exit code of a fault of this file
GROUP = re.compile(r"@[\w-]+$")  # xdist adds it to the names of tests
SELECTED = "not heavy and (sweep or not nightly)"
QUICK = ("-q", "-m", SELECTED, "--hypothesis-seed=0", "-p", "no:cacheprovider")
SWITCH = '''
import os
import time

with open({active!r}) as file:
    active = int(file.read())
reached = set()


def is_on(number):
    """Report whether a mutant is active; without one, write which test asks.

    Processes without the variable, such as decoders, write the time alone.
    """
    if active < 0:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        key = number, test or int(time.time() * 5)
        if key not in reached:
            reached.add(key)
            with open({hits!r}, "a") as file:
                file.write(f"{{number}}\\t{{time.time()}}\\t{{test}}\\n")
    return number == active
'''


def git(folder: Path, *arguments: str) -> str:
    """Return what Git prints."""
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def make_copy(folder: Path, commit: str) -> Path:
    """Clone a commit, with a Python that imports the clone in all processes; return its path."""
    git(folder, "clone", "--quiet", "--shared", str(ROOT), "copy")
    copy = folder / "copy"
    git(copy, "checkout", "--quiet", commit)
    venv.create(copy / ".venv", symlinks=True)
    (packages,) = (copy / ".venv").glob("lib/*/site-packages")
    (ours,) = Path(sys.prefix).glob("lib/*/site-packages")
    paths = f"{copy / 'src'}\nimport site; site.addsitedir({str(ours)!r})\n"
    (packages / "copy.pth").write_text(paths)
    files = {name: str(folder / name) for name in ("active", "hits")}
    for path in files.values():
        Path(path).touch()
        Path(path).chmod(0o666)  # some tests act as other users
    (packages / "mutant_switch.py").write_text(SWITCH.format(**files))
    return copy


def run_pytest(copy: Path, *arguments: object) -> None:
    """Run pytest with a plugin of this file in the copy."""
    temporary = copy.parent / "t"
    temporary.mkdir()
    command = [copy / ".venv" / "bin" / "python", __file__, *arguments]
    subprocess.run(
        list(map(str, command)),
        cwd=copy,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    shutil.rmtree(temporary, ignore_errors=True)


class Recorder:
    """A plugin of pytest that writes times and outcome of each phase of a test to a file."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Append a line."""
        phase = (GROUP.sub("", report.nodeid), report.start, report.stop, report.failed)
        with self.path.open("a") as file:
            file.write(json.dumps(phase) + "\n")


def read_records(folder: Path, count: int) -> tuple[dict[str, float | None], list[list[str]]]:
    """Return the seconds of each test, None if it fails, and the tests that reach each mutant."""
    begins: dict[str, float] = {}
    ends: dict[str, float] = {}
    failed = set()
    for line in (folder / "reports").read_text().splitlines():
        name, begin, end, has_failed = json.loads(line)
        begins.setdefault(name, begin)
        ends[name] = end
        if has_failed:
            failed.add(name)
    times = {name: None if name in failed else ends[name] - begins[name] for name in begins}
    tests: list[set[str]] = [set() for _ in range(count)]
    for line in (folder / "hits").read_text().splitlines():
        number, moment, phase = line.split("\t")
        name = GROUP.sub("", phase.rpartition(" (")[0])
        running = {n for n in times if begins[n] <= float(moment) <= ends[n]}
        tests[int(number)] |= {name} & times.keys() if phase else running
    return times, [sorted(names) for names in tests]


class Trier:
    """A plugin of pytest that runs tests on each mutant without a result, in a forked process."""

    def __init__(self, results: str, seconds: str) -> None:
        self.results = Path(results)
        self.state = json.loads(self.results.read_text())
        self.seconds = float(seconds)
        self.folder = Path.cwd().parent
        self.failed = self.folder / "failed"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the name of a test that fails, and end the forked process."""
        if report.failed:
            self.failed.write_text(report.nodeid)
            os._exit(1)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Try the mutants instead of running the tests."""
        items = {item.nodeid: item for item in session.items}
        recorded = self.state["times"]
        times = {name: recorded.get(name, 0.5) for name in items}
        times = {name: seconds for name, seconds in times.items() if seconds is not None}
        for number, values in enumerate(self.state["mutants"]):
            mutant = Mutant(**values)
            old = self.state["results"].get(str(number), {})
            if old.get("outcome", "error") not in ("timed out", "error"):
                continue
            covering = [name for name in self.state["tests"][number] if name in times]
            names = fast_tests(covering or tests_near(mutant, [*times]), times, self.seconds / 2)
            self.failed.write_text("")
            outcome = self.try_mutant(number, [items[name] for name in names])
            if outcome == "survived" and not covering:
                outcome = "no covering test"
            result = {"outcome": outcome, "covering": len(covering), "tests": len(names)}
            self.state["results"][str(number)] = {**result, "killer": self.failed.read_text()}
            self.results.write_text(json.dumps(self.state, indent=1))
            with (self.folder / "log").open("a") as log:
                print(number, f"{mutant.file}:{mutant.line}", outcome, file=log)
        return True

    def try_mutant(self, number: int, items: list[pytest.Item]) -> str:
        """Run tests in a forked process, or in a new one if this one has run the changed code."""
        (self.folder / "active").write_text(str(number))
        import mutant_switch

        command = [sys.executable, "-m", "pytest", "-x", *QUICK, *[item.nodeid for item in items]]
        is_imported = number in {key for key, _ in mutant_switch.reached}
        pid = os.fork()
        if pid == 0:
            os.setsid()
            if is_imported:
                os.execv(sys.executable, command)
            mutant_switch.active = number
            code = FAULT
            try:
                for item, following in zip(items, [*items, None][1:], strict=True):
                    item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                code = 0
            finally:
                os._exit(code)
        end = time.monotonic() + self.seconds
        ended, status = 0, 0
        while not ended and time.monotonic() < end:
            time.sleep(0.05)
            ended, status = os.waitpid(pid, os.WNOHANG)
        # A mutant may leave processes behind: Python's, and servers of the copy.
        copy = str(Path(sys.executable).parents[2])
        for process in psutil.process_iter(["cmdline"]):
            program = (process.info["cmdline"] or [""])[0]
            if program.startswith(copy) and process.pid != os.getpid():
                os.kill(process.pid, signal.SIGKILL)
        if not ended:
            os.waitpid(pid, 0)
            return "timed out"
        code = os.waitstatus_to_exitcode(status)
        return {0: "survived", FAULT: "error"}.get(code, "killed")


def fast_tests(names: list[str], times: dict[str, float], seconds: float) -> list[str]:
    """Return the fastest tests that take some seconds together, at least one."""
    total = 0.0
    chosen: list[str] = []
    for name in sorted(names, key=lambda name: times[name]):
        total += times[name]
        if total < seconds or not chosen:
            chosen.append(name)
    return chosen


def tests_near(mutant: Mutant, names: list[str]) -> list[str]:
    """Return tests of files that mirror the module, contain its name, or mirror its folder."""
    path = Path(mutant.file)
    module = ".".join(path.with_suffix("").parts).removesuffix(".__init__")
    files = dict.fromkeys(name.partition("::")[0] for name in names)
    mirror = f"tests/{path.parent}/test_{path.stem}.py"
    naming = [file for file in files if module in Path(file).read_text()]
    in_folder = [file for file in files if file.startswith(f"tests/{path.parent}/")]
    near = dict.fromkeys([mirror, *naming, *in_folder])
    return [name for file in near for name in names if name.partition("::")[0] == file]


def print_report(state: dict[str, Any]) -> None:
    """Print a table of outcomes, and the mutants that no test killed."""
    kinds = [mutant["kind"] for mutant in state["mutants"]]
    outcomes = {int(number): result["outcome"] for number, result in state["results"].items()}
    counts = Counter((kinds[number], outcome) for number, outcome in outcomes.items())
    counts += Counter(("all", outcome) for outcome in outcomes.values())
    print(f"{'':12}" + "".join(f"{outcome:>18}" for outcome in OUTCOMES))
    for kind in sorted({kind for kind, _ in counts}):
        print(f"{kind:12}" + "".join(f"{counts[kind, outcome]:18}" for outcome in OUTCOMES))
    for number, outcome in sorted(outcomes.items()):
        if outcome in OUTCOMES[2:]:
            mutant = Mutant(**state["mutants"][number])
            result = state["results"][str(number)]
            note = ", was killed before" if state["before"][number] in OUTCOMES[:2] else ""
            tests = f"{result['tests']} of {result['covering']} tests"
            print(f"\n{number} {mutant.file}:{mutant.line}: {outcome}, {tests}{note}")
            print("\n".join(state["diffs"][number]))
    for identity in state["missing"]:
        print("\nnot found again:", *identity)


def choose_again(
    path: Path, statements: list[list[Mutant]]
) -> tuple[list[Mutant], list[str], list[Any]]:
    """Return the mutants of earlier results, their outcomes, and identities without a mutant."""
    old = json.loads(path.read_text())
    mutants, outcomes, missing = [], [], []
    for number, values in enumerate(old["mutants"]):
        identity = Mutant(**values).identity
        mutant = find_again(identity, statements)
        if mutant:
            mutants.append(mutant)
            outcomes.append(old["results"].get(str(number), {}).get("outcome", ""))
        else:
            missing.append(identity)
    return mutants, outcomes, missing


def main() -> None:
    """Try the mutants that have no result yet, and print the report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path, help="JSON file of results")
    parser.add_argument("--like", type=Path, help="results whose mutants are made again")
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tests", nargs="+", default=["tests"], help="files or folders of tests")
    parser.add_argument("--seconds", type=float, default=60, help="at most, for a mutant")
    options = parser.parse_args()
    os.nice(10)
    state = json.loads(options.results.read_text()) if options.results.exists() else {}
    commit = state.get("commit") or git(ROOT, "rev-parse", "HEAD").strip()
    with tempfile.TemporaryDirectory(prefix="m", ignore_cleanup_errors=True) as folder:
        copy = make_copy(Path(folder), commit)
        if not state:
            statements = []
            for name in git(copy, "ls-files", "--", *PACKAGES).split():
                if name.endswith(".py"):
                    statements += find_mutants(name, (copy / name).read_text())
            mutants = choose(statements, options.count, options.seed)
            before = [""] * len(mutants)
            missing: list[Any] = []
            if options.like:
                mutants, before, missing = choose_again(options.like, statements)
            state = {"commit": commit, "before": before, "missing": missing, "results": {}}
            state["diffs"] = [mutant.diff((copy / mutant.file).read_bytes()) for mutant in mutants]
            state["mutants"] = list(map(asdict, mutants))
        mutants = [Mutant(**values) for values in state["mutants"]]
        # From the last piece of a file to the first, so that places stay right.
        for number, mutant in sorted(enumerate(mutants), key=lambda pair: -pair[1].start):
            path = copy / mutant.file
            path.write_bytes(mutant.switch(path.read_bytes(), number))
        (copy.parent / "active").write_text("-1")
        if "tests" not in state:
            workers = ("-n", 2, "--dist=loadgroup")
            run_pytest(copy, "--record", copy.parent / "reports", *workers, *options.tests)
            state["times"], state["tests"] = read_records(copy.parent, len(mutants))
            options.results.write_text(json.dumps(state, indent=1))
        run_pytest(copy, "--try", options.results.resolve(), options.seconds, *options.tests)
        print_report(json.loads(options.results.read_text()))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--record", path, *arguments]:
            sys.exit(pytest.main([*QUICK, *arguments], plugins=[Recorder(path)]))
        case ["--try", path, seconds, *arguments]:
            sys.exit(pytest.main([*QUICK, "-n", "0", *arguments], plugins=[Trier(path, seconds)]))
    main()
