"""Flags of ``shardmill completion``."""

from __future__ import annotations

from shardmill.pipelines.flags.parser import Parser, add_debug

SHELLS = ("bash", "fish", "zsh")

_EPILOG = """\
Put it where the shell starts:
  bash, in ~/.bashrc                    eval "$(shardmill completion bash)"
  zsh, in ~/.zshrc, after compinit      eval "$(shardmill completion zsh)"
  fish, in ~/.config/fish/config.fish   shardmill completion fish | source"""


def completion_parser() -> Parser:
    """Returns the parser of ``shardmill completion``."""
    description = "Prints what makes a shell complete the commands and flags of shardmill."
    parser = Parser("completion", "SHELL", description, _EPILOG)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    add_debug(parser)
    parser.words = {"shell": SHELLS}
    return parser
