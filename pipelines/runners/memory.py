"""Beam's in-memory runner: the default, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from shardmill.pipelines.runners.base import Runner


class InMemory(Runner):
    """Runs in this process, so that there is no job to find or cancel."""

    in_process = True

    def prepare(self, argv: Sequence[str], job_name: str) -> list[str]:  # noqa: ARG002
        """See ``Runner.prepare``; there is no job name."""
        return [*argv]

    def make(self) -> Any:
        """See ``Runner.make``."""
        return FnApiRunner()
