"""The operator that runs Shardmill, or any command, in a separate environment."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout
from airflow.sdk.log import mask_secret

from shardmill_airflow.assets import asset_facts
from shardmill_airflow.keeper import end_with_parent
from shardmill_airflow.running import Command, clean_environment, shortened
from shardmill_airflow.settings import load_settings

_NEXT = "the next attempt reuses the finished parts."
_USAGE = 2  # the exit code of a usage error, which no retry fixes


class CommandOperator(BaseOperator):
    """Run a command and copy its output into the task's log, line by line.

    However the task ends, no process of the command remains: it gets SIGTERM, which cancels a job
    on a cluster, and SIGKILL after a grace period. A failure is reported as the command's own
    sentence; a usage error is not retried. Returns the last line of standard output.

    Args:
        argv: The program and its arguments, each a separate template. There is no shell, so that
            no date or name is split into several arguments.
        grace: Seconds that the command has to exit after SIGTERM.
        extra: Templates of the values that events of the outlets carry, besides what the JSON
            object says that the command prints last.
    """

    template_fields: Sequence[str] = ("argv", "extra")
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        argv: Sequence[str],
        grace: float = 60,
        extra: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.argv = list(argv)
        self.grace = grace
        self.extra = dict(extra or {})
        self._command: Command | None = None
        self._stopped = False

    def execute(self, context: Context) -> str | None:
        """Run the command until it exits."""
        end_with_parent()  # the supervisor of the task may be killed
        self.log.info("Running %s", shlex.join(self.argv))
        env = clean_environment(self._rendered_env(context))
        command = self._command = Command.start(self.argv, env, self.grace)
        try:
            if self._stopped:
                command.stop()
            self._log_lines(command)
        except BaseException as error:  # AirflowTaskTimeout is one
            command.stop()
            self._log_lines(command)
            if isinstance(error, AirflowTaskTimeout):
                self.log.warning("Stopped at its timeout of %s: %s", self.execution_timeout, _NEXT)
            raise
        code = command.process.wait()
        if code == _USAGE:
            raise AirflowFailException(command.failure(code))
        if code:
            # Not an AirflowException: Airflow would log a traceback around the sentence.
            raise SystemExit(
                f"Stopped by Airflow: {_NEXT}" if self._stopped else command.failure(code)
            )
        for outlet in self.outlets:
            facts = asset_facts(command.last.get(False, ""))
            context["outlet_events"][outlet].extra = {**self.extra, **facts}
        return command.last.get(False)

    def _rendered_env(self, context: Context) -> dict[str, str]:
        """Return ``[env]`` with its templates rendered: connections and variables.

        Not a template field, since Airflow stores and shows those.
        """
        templates = load_settings().env
        found: dict[str, str] = self.render_template(templates, context)
        for name, value in found.items():
            if value != templates[name]:
                mask_secret(value)  # in the log, where the command may print it
        return found

    def on_kill(self) -> None:
        """Ask the command to exit; ``execute`` logs the remaining lines and fails."""
        self._stopped = True
        if self._command is not None:
            self._command.stop()

    def _log_lines(self, command: Command) -> None:
        for is_stderr, line in command.lines():
            warning = is_stderr and line.startswith("shardmill: ")
            (self.log.warning if warning else self.log.info)("%s", shortened(line))
