"""The operator that runs Shardmill, or any command, in an environment of its own."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator, Context
from airflow.sdk.exceptions import AirflowFailException, AirflowTaskTimeout

from shardmill_airflow.keeper import end_with_parent
from shardmill_airflow.running import Command, clean_environment

_NEXT = "the next try goes on from the parts that are finished."
_USAGE = 2  # the exit code of a command line that no retry can mend


class CommandOperator(BaseOperator):
    """Runs a command and tells its lines in the task's log as they come.

    Whatever ends the task, nothing of the command stays: it gets SIGTERM, which cancels a job on a
    cluster, and SIGKILL after a grace. A failure is its one sentence; a command line that is wrong
    is not tried again. Returns the last line of standard output.

    Args:
        argv: The program and its arguments, each a template of its own. There is no shell, so that
            nothing in a date or a name becomes another argument.
        grace: Seconds that the command has to end.
        env: Added to the environment.
        extra: What events of the outlets carry; templates.
    """

    template_fields: Sequence[str] = ("argv", "extra")
    ui_color = "#e8f0fe"

    def __init__(
        self,
        *,
        argv: Sequence[str],
        grace: float = 60,
        env: Mapping[str, str] | None = None,
        extra: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.argv = list(argv)
        self.grace = grace
        self.env = dict(env or {})
        self.extra = dict(extra or {})
        self._command: Command | None = None
        self._stopped = False

    def execute(self, context: Context) -> str | None:
        """Runs the command to its end."""
        end_with_parent()  # the supervisor may be killed, and nobody would hear of us any more
        self.log.info("Running %s", shlex.join(self.argv))
        command = self._command = Command.start(self.argv, clean_environment(self.env), self.grace)
        try:
            if self._stopped:
                command.leave()
            self._tell(command)
        except BaseException as error:  # AirflowTaskTimeout is one
            command.leave()
            self._tell(command)
            if isinstance(error, AirflowTaskTimeout):
                self.log.warning("Stopped at its timeout of %s: %s", self.execution_timeout, _NEXT)
            raise
        code = command.process.wait()
        if code == _USAGE:
            raise AirflowFailException(command.failure(code))
        if code:
            # Not an AirflowException: Airflow buries those in a traceback of its own.
            raise SystemExit(
                f"Ended from outside: {_NEXT}" if self._stopped else command.failure(code)
            )
        for outlet in self.outlets:
            context["outlet_events"][outlet].extra = dict(self.extra)
        return command.last.get(False)

    def on_kill(self) -> None:
        """Asks the command to end; ``execute`` tells the rest and fails."""
        self._stopped = True
        if self._command is not None:
            self._command.leave()

    def _tell(self, command: Command) -> None:
        for complained, line in command.lines():
            warning = complained and line.startswith("shardmill: ")
            (self.log.warning if warning else self.log.info)("%s", line)
