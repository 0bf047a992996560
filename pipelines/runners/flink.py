"""Flink: a cluster that Beam's job server submits to.

Jobs are found and cancelled through Flink's REST API, since Beam's ``cancel`` reports a job as
cancelled while it continues to run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    GoogleCloudOptions,
    JobServerOptions,
    PipelineOptions,
    PortableOptions,
)

from shardmill.pipelines.runners.base import (
    Job,
    Runner,
    kill_with_parent_prefix,
    option_given,
    poll,
)
from shardmill.schemas.errors import OutputError, UsageError
from shardmill.schemas.numbers import plural

_TIMEOUT = 10  # seconds per call
_CANCELLED_WITHIN = 60  # seconds
_VISIBLE_WITHIN = 5  # seconds until a submitted job is listed
_PAUSE = 0.2  # seconds between two requests while a job is being cancelled
_WORKER_CACHE = 30_000  # milliseconds between stages; else each stage starts new workers
_TERMINAL = frozenset({"FINISHED", "CANCELED", "FAILED", "SUSPENDED"})


class Flink(Runner):
    """A Flink cluster; ``[local]`` and ``[auto]`` start one inside the job server."""

    _rest: str | None = None
    _earlier: frozenset[str] = frozenset()

    def prepare(self, argv: Sequence[str], job_name: str) -> list[str]:
        """See ``Runner.prepare``; asks the cluster for its slots."""
        options = PipelineOptions([*argv])
        flink = options.view_as(FlinkRunnerOptions)
        argv = super().prepare(argv, job_name)
        if not option_given(argv, "environment_cache_millis"):
            argv.append(f"--environment_cache_millis={_WORKER_CACHE}")
        endpoint = options.view_as(PortableOptions).job_endpoint
        if endpoint and endpoint != "embed":
            _check_job_server(endpoint)
        if not endpoint and not flink.flink_submit_uber_jar:
            jar = flink.flink_job_server_jar
            if jar and "://" not in jar and not os.path.isfile(jar):
                raise UsageError(
                    f"--flink_job_server_jar={jar} is not a file: deploy/flink/install.sh builds "
                    "one."
                )
            argv = [*_job_server(options.view_as(JobServerOptions), argv), *argv]
        self._rest = rest = rest_address(options)
        if rest is None:
            return argv
        overview = _overview(rest, flink.flink_master)
        slots = int(overview["slots-total"])
        if not slots:
            raise OutputError(
                f"The Flink cluster at {rest} has no TaskManager: start one and run again."
            )
        if flink.parallelism > slots:
            raise UsageError(
                f"--parallelism={flink.parallelism} is more than the {plural(slots, 'slot')} of "
                f"the cluster at {rest}: give {slots} or less, or add TaskManagers."
            )
        several = int(overview["taskmanagers"]) > 1
        if several and options.view_as(PortableOptions).environment_type == "LOOPBACK":
            actual = overview["taskmanagers"]
            raise UsageError(
                f"--environment_type=LOOPBACK supports one TaskManager, and the cluster at {rest} "
                f"has {actual}: use PROCESS, EXTERNAL or DOCKER."
            )
        if flink.parallelism < 1:  # else one slot works and the others are idle
            argv.append(f"--parallelism={slots}")
        return argv

    def make(self) -> Any:
        """See ``Runner.make``; records earlier jobs, which may have the same name."""
        if self._rest is not None:
            self._earlier = frozenset(job["jid"] for job in _jobs(self._rest))
        return "FlinkRunner"

    def find_job(self, options: PipelineOptions, result: Any) -> Job | None:
        """See ``Runner.find_job``; its name is unique among new jobs."""
        rest = self._rest
        if rest is None:
            return super().find_job(options, result)
        name = options.view_as(GoogleCloudOptions).job_name
        for job in _jobs(rest):
            if job["name"] == name and job["jid"] not in self._earlier:
                return Job(job["jid"], f"{rest}/#/job/running/{job['jid']}/overview")
        return None

    def cancel(self, options: PipelineOptions, result: Any) -> bool:
        """Ask the cluster to cancel the job; see ``Runner.cancel``."""
        rest = self._rest
        if rest is None:  # the cluster is in the job server; one that Beam started ends with us
            ended = super().cancel(options, result)
            return ended or not options.view_as(PortableOptions).job_endpoint
        job = poll(lambda: self.find_job(options, result), _VISIBLE_WITHIN, _PAUSE)
        if job is None:
            return result is None
        url = f"{rest}/jobs/{job.id}"
        with contextlib.suppress(OSError, ValueError):
            _call(f"{url}?mode=cancel", "PATCH")
            return poll(lambda: _call(url)["state"] in _TERMINAL, _CANCELLED_WITHIN, _PAUSE)
        return False


def rest_address(options: PipelineOptions) -> str | None:
    """Return the address of the cluster's REST API, or None if no cluster is named."""
    master = str(options.view_as(FlinkRunnerOptions).flink_master).strip().rstrip("/")
    if not master or master.startswith("["):
        return None
    if "://" in master:
        return master
    return f"http://{master}"


def _jobs(rest: str) -> list[dict[str, Any]]:
    """Return all jobs of a cluster; none if it does not answer."""
    with contextlib.suppress(OSError, ValueError):
        jobs: list[dict[str, Any]] = _call(f"{rest}/jobs/overview")["jobs"]
        return jobs
    return []


def _job_server(options: Any, argv: Sequence[str]) -> list[str]:
    """Return the options that make the kernel kill the job server when this process dies.

    Raises:
        UsageError: There is no Java.
    """
    java = shutil.which(options.job_server_java_launcher)
    if java is None:
        raise UsageError(
            f"--runner=FlinkRunner needs Java and {options.job_server_java_launcher!r} is not "
            "installed: install Java 11 or 17."
        )
    prefix = kill_with_parent_prefix()
    if not prefix or option_given(argv, "job_server_java_launcher"):
        return []
    given = [f"--job_server_jvm_properties={text}" for text in (*prefix[1:], java)]
    return [f"--job_server_java_launcher={prefix[0]}", *given]


def _check_job_server(endpoint: str) -> None:
    host, _, port = endpoint.rpartition("/")[2].rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _TIMEOUT).close()
    except (OSError, ValueError) as error:  # Beam would wait for minutes
        raise OutputError(
            f"No job server answers at --job_endpoint={endpoint}: start it, or correct the address "
            f"({error})."
        ) from error


def _overview(rest: str, master: str) -> dict[str, Any]:
    try:
        return _call(f"{rest}/overview")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise OutputError(
            f"No Flink cluster answers at --flink_master={master}: start the cluster, or correct "
            f"the address ({reason})."
        ) from error


def _call(url: str, method: str = "GET") -> dict[str, Any]:
    """Return the answer of the REST API.

    Raises:
        OSError: There is no answer, or it is an error.
        ValueError: The answer is not JSON, or the address not HTTP.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError("it is not an HTTP address")
    request = urllib.request.Request(url, method=method)  # noqa: S310 - checked above
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
        body = answer.read()
    content: dict[str, Any] = json.loads(body or b"{}")
    return content
