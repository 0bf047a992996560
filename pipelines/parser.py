"""The parser of every command; light, so that small commands start at once."""

from __future__ import annotations

import argparse
from typing import NoReturn

from shardmill.schemas.errors import UsageError


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one sentence, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Raises the message as a usage error."""
        raise UsageError(f"{message[:1].upper()}{message[1:]}; see {self.prog} --help.")
