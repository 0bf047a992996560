"""``shardmill completion``: scripts that complete commands and flags in bash, zsh and fish."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from shardmill.pipelines.commands import COMMANDS, find_parser
from shardmill.pipelines.commands.parser import Parser
from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas.errors import UsageError


@dataclass(kw_only=True)
class CompletionOptions:
    """Options of ``shardmill completion``.

    Attributes:
        shell: ``SHELL``: bash, zsh or fish
    """

    usage: ClassVar = "SHELL [FLAGS]"
    summary: ClassVar = "Print a script that completes commands and flags in a shell."
    example: ClassVar = """\
examples, for the shell that runs them:
  eval "$(shardmill completion bash)"
  eval "$(shardmill completion zsh)"
  shardmill completion fish | source"""
    shell: str


@dataclass(frozen=True)
class Flag:
    """A flag of a command.

    Attributes:
        name: With its hyphens.
        help: What it does.
        has_value: Whether a value follows, after an equals sign.
        values: Some values; all, unless the flag takes other texts or files.
    """

    name: str
    help: str
    has_value: bool
    values: tuple[str, ...]


def run(flags: CompletionOptions, answer: Answer) -> int:
    """Print the script of a shell; return the exit code."""
    if flags.shell not in SHELLS:
        raise UsageError(
            f"{flags.shell} is not a shell that can complete flags: use bash, zsh or fish."
        )
    script = "".join(f"{line}\n" for line in SHELLS[flags.shell](all_flags()))
    answer.give({"shell": flags.shell, "script": script})
    if not answer.json:
        print(script, end="")
    return 0


def all_flags() -> dict[str, list[Flag]]:
    """Return the flags of each command."""
    return {command: list(flags_of(find_parser(command))) for command in COMMANDS}


def flags_of(parser: Parser) -> Iterator[Flag]:
    """Yield the flags of a command."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        names = [name for name in action.option_strings if name.startswith("--")]
        if not names:
            continue
        option = parser.options.get(action.dest)
        has_value = action.nargs != 0
        values = tuple(map(str, action.choices or ()))
        if option is not None and has_value:
            values = tuple(option.choices)
        help_text = "" if action.help in (None, argparse.SUPPRESS) else str(action.help)
        yield Flag(names[0], help_text.replace("%%", "%"), has_value, values)
        for word in names[1:]:  # a switch that has values, such as --update=content
            yield Flag(word, help_text.replace("%%", "%"), False, ())


def bash_lines(commands: dict[str, list[Flag]]) -> Iterator[str]:
    """Yield the lines of the script for bash.

    Readline divides words at ``=`` and ``:`` too, and replaces only the last piece of a word.
    """
    yield "_shardmill() {"
    yield '    local line="${COMP_LINE:0:COMP_POINT}" words= values='
    yield '    local word="${line##* }"'
    yield "    COMPREPLY=()"
    yield '    if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f'        COMPREPLY=($(compgen -W {shlex.quote(" ".join(commands))} -- "$word"))'
    yield "        return"
    yield "    fi"
    yield '    case "${COMP_WORDS[1]}:$word" in'
    for command, flags in commands.items():
        for name, words in _values_by_flag(flags).items():
            values = shlex.quote(" ".join(words))
            yield f"        {command}:{name}=*) values={values} ;;"
    yield "    esac"
    yield '    case "${COMP_WORDS[1]}" in'
    for command, flags in commands.items():
        names = " ".join(flag.name + ("=" if flag.has_value else "") for flag in flags)
        yield f"        {command}) words={shlex.quote(names)} ;;"
    yield "    esac"
    yield '    local piece="${COMP_WORDS[COMP_CWORD]}"'
    yield '    case "$piece" in =|:) piece= ;; esac'
    yield '    case "$word" in'
    yield "        -*=*)"
    yield '            if [ -n "$values" ]; then'
    yield '                local value="${word#*=}"'
    yield '                COMPREPLY=($(compgen -W "$values" -- "$value"))'
    yield '                local before="${value%"$piece"}"'
    yield '                COMPREPLY=("${COMPREPLY[@]#"$before"}")'
    yield "            else"
    yield "                compopt -o filenames"
    yield '                mapfile -t COMPREPLY < <(compgen -f -- "$piece")'
    yield "            fi"
    yield "            ;;"
    yield "        -*)"
    yield '            COMPREPLY=($(compgen -W "$words" -- "$word"))'
    yield '            case "${COMPREPLY[0]}" in *=) compopt -o nospace ;; esac'
    yield "            ;;"
    yield "        *)"
    yield "            compopt -o filenames"
    yield '            mapfile -t COMPREPLY < <(compgen -f -- "$piece")'
    yield "            ;;"
    yield "    esac"
    yield "}"
    yield "complete -F _shardmill shardmill"


def _values_by_flag(flags: list[Flag]) -> dict[str, list[str]]:
    """Return the values to complete after the equals sign of a flag."""
    values: dict[str, list[str]] = {}
    for flag in flags:
        name, equals, word = flag.name.partition("=")
        if equals or flag.values:
            values.setdefault(name, []).extend([word] if equals else flag.values)
    return values


def zsh_lines(commands: dict[str, list[Flag]]) -> Iterator[str]:
    """Yield the lines of the script for zsh, which can also be a file ``_shardmill`` in fpath."""
    yield "#compdef shardmill"
    yield "_shardmill() {"
    yield "    local -a commands=("
    for command in commands:
        yield f"        {shlex.quote(f'{command}:{COMMANDS[command]}')}"
    yield "    )"
    yield "    if (( CURRENT == 2 )); then"
    yield "        _describe command commands"
    yield "        return"
    yield "    fi"
    yield "    local command=$words[2]"
    yield "    shift words"
    yield "    (( CURRENT-- ))"
    yield "    case $command in"
    for command, flags in commands.items():
        yield f"        {command})"
        yield "            _arguments \\"
        for flag in flags:
            yield f"                {shlex.quote(_zsh_argument(flag))} \\"
        yield "                '*:path:_files'"
        yield "            ;;"
    yield "    esac"
    yield "}"
    yield "(( $+functions[compdef] )) && compdef _shardmill shardmill"


def _zsh_argument(flag: Flag) -> str:
    text = flag.help.replace("\\", "\\\\").replace("[", r"\[").replace("]", r"\]")
    if not flag.has_value:
        return f"{flag.name}[{text}]"
    values = " ".join(flag.values).replace(":", r"\:")
    action = f"({values})" if values else "_files"
    return f"*{flag.name}=[{text}]:value:{action}"


def fish_lines(commands: dict[str, list[Flag]]) -> Iterator[str]:
    """Yield the lines of the script for fish."""
    seen = "__fish_seen_subcommand_from"
    for command in commands:
        text = _fish_text(COMMANDS[command])
        yield f"complete -c shardmill -n __fish_use_subcommand -f -a {command} -d {text}"
    for command, flags in commands.items():
        for flag in flags:
            name = flag.name.removeprefix("--")
            line = (
                f"complete -c shardmill -n '{seen} {command}' -l {name} -d {_fish_text(flag.help)}"
            )
            if flag.values:
                line += f" -x -a {_fish_text(' '.join(flag.values))}"
            elif flag.has_value:
                line += " -r"
            yield line


def _fish_text(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


SHELLS = {"bash": bash_lines, "zsh": zsh_lines, "fish": fish_lines}
