"""Find out where Shardmill and its extras install without a compiler, and write it into the docs.

usage: python docs/_tools/wheels.py [--check] [--docs] [EXTRA...]

uv resolves the requirements of setup.py for other machines, with wheels only, and installs nothing.
The results are stored in wheels.json, from which the table in the docs is made.

--check compares with the stored results instead, and --docs only makes the table. Names of extras
resolve these alone.
"""

import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import setuptools

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).with_name("wheels.json")
PAGE = ROOT / "docs" / "getting-started.md"
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
PLATFORMS = {
    "Linux x86-64": "x86_64-manylinux_2_28",
    "Linux ARM": "aarch64-manylinux_2_28",
    "macOS ARM": "aarch64-apple-darwin",
    "Windows": "x86_64-pc-windows-msvc",
}
BASE = "shardmill"
EXTRAS = ("gcs", "s3", "dataflow", "heic", "tensorflow", "tft", "torch", "jax")
# They have no wheels, but are pure Python: any machine builds them, without a compiler.
PURE = ("google-apitools",)
BLOCK = re.compile(r"(?<=<!-- wheels -->\n).*?(?=<!-- end of wheels -->\n)", re.DOTALL)

Results = dict[str, dict[str, dict[str, str]]]


def requirements(setup: Path) -> dict[str, list[str]]:
    """Return the requirements of the base installation, and those that each extra adds.

    Resolved together they would take several times as long. So the results say where wheels exist,
    and not that an extra agrees with the base installation: other tests install them.
    """
    options: dict[str, Any] = {}
    original = setuptools.setup
    setuptools.setup = options.update  # type: ignore[assignment]
    try:
        runpy.run_path(str(setup))
    finally:
        setuptools.setup = original
    base = options["install_requires"]
    return {BASE: base} | {name: options["extras_require"][name] for name in EXTRAS}


def resolve(lines: list[str], platform: str, python: str) -> str:
    """Return why requirements cannot be installed from wheels; empty if they can be."""
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--only-binary=:all:", "-"]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as overrides:
        overrides.writelines(f'{name}; python_version < "3"\n' for name in PURE)
        overrides.flush()
        command += [f"--override={overrides.name}", f"--constraint={ROOT / 'constraints.txt'}"]
        command.append(f"--python-version={python}")
        done = subprocess.run(
            [*command, f"--python-platform={platform}"],
            cwd="/",
            env={**os.environ, "MACOSX_DEPLOYMENT_TARGET": "14.0"},  # the oldest with updates
            input="\n".join(lines),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode == 0:
        return ""
    text = " ".join(done.stderr.split())
    if "No solution" not in text:
        raise RuntimeError(text)
    match = re.search(r"(?:hint: )?(?:Wheels are available for|Because) `?([\w-]+)", text)
    return match[1] if match else text


def resolve_all(name: str, lines: list[str]) -> dict[str, dict[str, str]]:
    """Return the reasons by platform and version of Python."""
    cases = [(system, python) for system in PLATFORMS for python in PYTHONS]
    with ThreadPoolExecutor(4) as pool:
        reasons = list(pool.map(lambda case: resolve(lines, PLATFORMS[case[0]], case[1]), cases))
    results: dict[str, dict[str, str]] = {system: {} for system in PLATFORMS}
    for (system, python), reason in zip(cases, reasons, strict=True):
        results[system][python] = reason
    print(name, {system: cell(results[system]) for system in PLATFORMS}, flush=True)
    return results


def cell(reasons: dict[str, str]) -> str:
    """Return the versions of Python that have all wheels."""
    versions = [python for python in PYTHONS if not reasons[python]]
    if len(versions) < 2:
        return "".join(versions) or "no"
    first, last = PYTHONS.index(versions[0]), PYTHONS.index(versions[-1])
    whole = len(versions) == last - first + 1
    return f"{versions[0]} to {versions[-1]}" if whole else ", ".join(versions)


def table(results: Results) -> str:
    """Return the table of the docs."""
    lines = [f"| | {' | '.join(PLATFORMS)} |", f"|---|{'---|' * len(PLATFORMS)}"]
    for name, systems in results.items():
        title = "without extras" if name == BASE else f"`{name}`"
        lines.append(f"| {title} | {' | '.join(cell(systems[system]) for system in PLATFORMS)} |")
    return "\n".join(lines) + "\n"


def main(*arguments: str) -> None:
    """Resolve, and write or compare the results."""
    stored = json.loads(RESULTS.read_text())
    if "--docs" not in arguments:
        lines_of = requirements(ROOT / "setup.py")
        names = [name for name in arguments if name in lines_of] or [*lines_of]
        for name in names:
            results = resolve_all(name, lines_of[name])
            if "--check" in arguments:
                now, before = table({name: results}), table({name: stored[name]})
                assert now == before, f"run `make wheels`:\n{now}"
                continue
            stored[name] = results
            ordered = {extra: stored[extra] for extra in lines_of if extra in stored}
            RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    block = table(json.loads(RESULTS.read_text()))
    page = PAGE.read_text(encoding="utf-8")
    assert BLOCK.search(page), PAGE
    PAGE.write_text(BLOCK.sub(lambda _: block, page), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
