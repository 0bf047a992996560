"""``shardmill completion``: scripts that complete commands and flags in bash, zsh and fish."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from shardmill.pipelines.commands import COMMANDS, find_parser
from shardmill.pipelines.commands.parser import Parser
from shardmill.pipelines.report.terminal import Answer
from shardmill.schemas.errors import UsageError

# Readline divides words at = and : too, and replaces only the last piece of a word.
_BASH = r"""_shardmill() {
    local line="${COMP_LINE:0:COMP_POINT}" words= values=
    local word="${line##* }"
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W @commands@ -- "$word"))
        return
    fi
    case "${COMP_WORDS[1]}:$word" in
@values@
    esac
    case "${COMP_WORDS[1]}" in
@words@
    esac
    local piece="${COMP_WORDS[COMP_CWORD]}"
    case "$piece" in =|:) piece= ;; esac
    case "$word" in
        -*=*)
            if [ -n "$values" ]; then
                local value="${word#*=}"
                COMPREPLY=($(compgen -W "$values" -- "$value"))
                local before="${value%"$piece"}"
                COMPREPLY=("${COMPREPLY[@]#"$before"}")
            else
                compopt -o filenames
                mapfile -t COMPREPLY < <(compgen -f -- "$piece")
            fi
            ;;
        -*)
            COMPREPLY=($(compgen -W "$words" -- "$word"))
            case "${COMPREPLY[0]}" in *=) compopt -o nospace ;; esac
            ;;
        *)
            compopt -o filenames
            mapfile -t COMPREPLY < <(compgen -f -- "$piece")
            ;;
    esac
}
complete -F _shardmill shardmill"""


@dataclass(kw_only=True)
class CompletionOptions:
    """Options of ``shardmill completion``.

    Attributes:
        shell: ``SHELL``: bash, zsh or fish
    """

    usage = "SHELL [FLAGS]"
    summary = "Print a script that completes commands and flags in a shell."
    example = """\
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
    commands = {command: list(flags_of(find_parser(command))) for command in COMMANDS}
    script = "".join(f"{line}\n" for line in SHELLS[flags.shell](commands))
    answer.give({"shell": flags.shell, "script": script})
    if not answer.json:
        print(script, end="")
    return 0


def flags_of(parser: Parser) -> Iterator[Flag]:
    """Yield the flags of a command."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way
        names = [name for name in action.option_strings if name.startswith("--")]
        if not names:
            continue
        option = parser.options.get(action.dest)
        has_value = action.nargs != 0
        choices = action.choices if option is None else option.choices
        values = tuple(choices or ()) if has_value else ()
        help_text = str(action.help).replace("%%", "%")
        yield Flag(names[0], help_text, has_value, values)
        for word in names[1:]:  # a switch that has values, such as --update=content
            yield Flag(word, help_text, False, ())


def bash_lines(commands: dict[str, list[Flag]]) -> list[str]:
    """Return the lines of the script for bash."""
    values, words = [], []
    for command, flags in commands.items():
        for name, choices in _values_by_flag(flags).items():
            listed = shlex.quote(" ".join(choices))
            values.append(f"        {command}:{name}=*) values={listed} ;;")
        names = " ".join(flag.name + ("=" if flag.has_value else "") for flag in flags)
        words.append(f"        {command}) words={shlex.quote(names)} ;;")
    script = _BASH.replace("@commands@", shlex.quote(" ".join(commands)))
    script = script.replace("@values@", "\n".join(values)).replace("@words@", "\n".join(words))
    return script.splitlines()


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
    yield "#compdef shardmill\n_shardmill() {\n    local -a commands=("
    for command in commands:
        yield f"        {shlex.quote(f'{command}:{COMMANDS[command]}')}"
    yield """    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    local command=$words[2]
    shift words
    (( CURRENT-- ))
    case $command in"""
    for command, flags in commands.items():
        yield f"        {command})\n            _arguments \\"
        for flag in flags:
            yield f"                {shlex.quote(_zsh_argument(flag))} \\"
        yield "                '*:path:_files'\n            ;;"
    yield "    esac\n}\n(( $+functions[compdef] )) && compdef _shardmill shardmill"


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


SHELLS: dict[str, Callable[[dict[str, list[Flag]]], Iterable[str]]] = {
    "bash": bash_lines,
    "zsh": zsh_lines,
    "fish": fish_lines,
}
