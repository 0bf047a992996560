"""Files that harm their decoder: it crashes, never ends, or takes all memory."""

import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path

from tests.conftest import ROOT, make_photos
from tests.support.readers import current

CODEC = ROOT / "tests" / "support" / "hostile_codec"  # its sitecustomize.py is a Pillow plugin


def write_hostile(path: Path, *action: object, size: tuple[int, int] = (20, 10)) -> None:
    """Write a file for the plugin."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(" ".join(map(str, ("HOSTILE", *size, *action))))


def hostile_environment() -> dict[str, str]:
    """Return an environment in which commands and their decoders load the plugin."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(CODEC), *sys.path])}


class HostileCase:
    """Photos, and a file for each way to harm a decoder.

    Args:
        folder: A new folder.
    """

    def __init__(self, folder: Path) -> None:
        self.source = make_photos(folder / "photos", {"cat": 20, "dog": 14})
        actions = {
            "decoder_crashed": [("abort",), ("segv",), ("signal", int(signal.SIGBUS)), ("exit", 1)],
            "decoder_memory": [("eat",)],
            "decoder_timeout": [("loop",)],
        }
        for reason, cases in actions.items():
            for action in cases:
                write_hostile(self.source / "cat" / f"{reason}-{action[0]}.bmp", *action)
        self.rejects = Counter({reason: len(cases) for reason, cases in actions.items()})

    def args(self, output: Path) -> list[str]:
        """Return the arguments of a build of several parts."""
        return [
            "images",
            f"--input={self.source}",
            f"--output={output}",
            "--image_size=32",
            "--shard_examples=8",
            "--max_reject_fraction=0.5",
            "--decoder_seconds=1",
            "--decoder_memory=1GiB",
            "--workers=2",
        ]

    def check(self, output: Path) -> None:
        """Check that all photos are written and each other file is a reject."""
        inputs = json.loads((output / "manifest.json").read_text())["inputs"]
        assert inputs["rejected_by_reason"] == dict(self.rejects)
        assert inputs["accepted"] == 34
        rejects = (current(output) / "rejects.jsonl").read_text()
        lines = [json.loads(line) for line in rejects.splitlines()]
        assert {line["key"].split("-")[0] for line in lines} == {f"cat/{r}" for r in self.rejects}
        assert all(line["key"].startswith(f"cat/{line['error']}-") for line in lines)
