"""Prism: Beam's portable runner for one machine, a program that Beam starts for each run."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Sequence
from typing import Any

import apache_beam
from apache_beam.options.pipeline_options import PipelineOptions, PrismRunnerOptions

from shardmill.pipelines.runners.base import Job, Runner, kill_with_parent_prefix
from shardmill.schemas.errors import UsageError

_REMEDY = (
    "give the program as --prism_location=FILE (`go install "
    "github.com/apache/beam/sdks/v2/go/cmd/prism@v{version}` builds it)"
)


class Prism(Runner):
    """Prism, which has no lasting job ids or pages."""

    def prepare(self, argv: Sequence[str], job_name: str) -> list[str]:
        """See ``Runner.prepare``; without its program Beam would try to download it."""
        path = PipelineOptions([*argv]).view_as(PrismRunnerOptions).prism_location
        remedy = _REMEDY.format(version=apache_beam.__version__)
        if not path:
            raise UsageError(f"--runner={self.name} needs its program: {remedy}.")
        if not os.path.isfile(path):
            raise UsageError(f"--prism_location={path} is not a file: {remedy}.")
        rest = [flag for flag in argv if not flag.startswith("--prism_location")]
        if "--prism_location" in argv:
            rest.remove(path)
        return [*super().prepare(rest, job_name), f"--prism_location={self._wrap(path)}"]

    def _wrap(self, path: str) -> str:
        """Return a script that starts Prism and makes the kernel kill it when this process dies."""
        prefix = kill_with_parent_prefix()
        if not prefix:
            return path
        command = " ".join(map(shlex.quote, [*prefix, os.path.abspath(path)]))
        self._folder = tempfile.TemporaryDirectory(prefix="shardmill-prism-")
        script = os.path.join(self._folder.name, "prism")
        with open(script, "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\nexec {command} "$@"\n')
        os.chmod(script, 0o700)
        return script

    def find_job(self, options: PipelineOptions, result: Any) -> Job | None:  # noqa: ARG002
        """See ``Runner.find_job``; its id is of no use outside this process."""
        return None

    def cancel(self, options: PipelineOptions, result: Any) -> bool:
        """See ``Runner.cancel``; its jobs end with Prism, and Prism with this process."""
        super().cancel(options, result)
        return True
