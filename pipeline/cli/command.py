"""The classes behind every command: help with examples, grouped options and exit codes, and a guarded run.

A command is a function under `pipeline/cli/commands/`. It gets its options, and the `stop` event of
`main_guard` if it has such a parameter, and returns its exit code. `--debug` is for `main_guard`. Nothing
heavy is imported here, because `--help` needs it.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn, TypeVar

import click

from pipeline.cli.signals import CommandKind, main_guard

PROGRAM = "pgdelta"
COMPLETE_VARIABLE = "_PGDELTA_COMPLETE"

WHOLE_PROCESS: Final = "whole process"
"""The object of the context if the process has nothing to do but this command."""
_NEW_OBJECTS = 500_000  # between two collections of a command that answers; Python's default is 700
_NEW_OBJECTS_OF_A_JOB = 50_000

ExitCodes = Mapping[int, str]
EXIT_CODES: ExitCodes = {
    0: "done",
    1: "failed; the last line on stderr says why, and what to do",
    2: "mistake in the command line or the configuration",
}
_SECOND_SIGNAL = {130: "ended by a second Ctrl-C or SIGTERM"}
_COLUMN = 28  # of the names of options; a longer one has its help on the next line

Function = TypeVar("Function", bound=Callable[..., Any])


class GroupedOption(click.Option):
    """An option that help shows under the heading of its group.

    One that `takes_many` has all arguments up to the next option as its value, a tuple.
    """

    def __init__(self, *arguments: Any, group: str, takes_many: bool = False, **attributes: Any) -> None:
        if takes_many:
            attributes["callback"] = _split_values
        super().__init__(*arguments, **attributes)
        self.group = group
        self.takes_many = takes_many


_NUL = "\0"  # joins several arguments to one; no argument can hold it


def _split_values(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    if value is None:
        return ()
    if parameter.multiple:
        return tuple(tuple(each.split(_NUL)) for each in value)
    return tuple(value.split(_NUL))


HELP = {"help_option_names": ["-h", "--help"]}
"""The settings of all commands: the names of the option that prints the help."""


class PipelineCommand(click.Command):
    """A command whose function runs under `main_guard`.

    `section` is its heading in `pgdelta --help`, `examples` are pairs of a comment and a command line, `kind`
    is what a signal does, for all runs or by the options of one.
    """

    def __init__(
        self,
        *arguments: Any,
        section: str,
        examples: Sequence[tuple[str, str]] = (),
        exit_codes: ExitCodes | None = None,
        kind: CommandKind | Callable[[Mapping[str, Any]], CommandKind] = CommandKind.ANSWER,
        **attributes: Any,
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.section = section
        self.examples = tuple(examples)
        self.kind = kind
        self.exit_codes = {**EXIT_CODES, **(exit_codes or {})}
        if self.default_kind.commits:
            self.exit_codes |= _SECOND_SIGNAL

    @property
    def default_kind(self) -> CommandKind:
        """What a signal does to a run without options."""
        return self.kind if isinstance(self.kind, CommandKind) else self.kind({})

    @property
    def paragraphs(self) -> list[str]:
        """The description, one line a paragraph."""
        return [" ".join(part.split()) for part in inspect.cleandoc(self.help or "").split("\n\n")]

    def option_groups(self, context: click.Context) -> dict[str, list[click.Parameter]]:
        """Return the options by the heading of their group, in the order in which they are declared."""
        groups: dict[str, list[click.Parameter]] = {}
        for parameter in self.get_params(context):
            if isinstance(parameter, click.Option):
                group = parameter.group if isinstance(parameter, GroupedOption) else "Output"
                groups.setdefault(group, []).append(parameter)
        return groups

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write usage, description, examples, options by group, exit codes, and what a signal does."""
        self.format_usage(ctx, formatter)
        with formatter.indentation():
            for paragraph in self.paragraphs:
                formatter.write_paragraph()
                _write_prose(formatter, paragraph)
        if self.examples:
            with formatter.section("Examples"):
                for comment, line in self.examples:
                    _write_prose(formatter, f"# {comment}")
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        for heading, options in self.option_groups(ctx).items():
            records = [record for each in options if (record := each.get_help_record(ctx)) is not None]
            _write_section(formatter, heading, records)
        codes = [(str(code), meaning) for code, meaning in sorted(self.exit_codes.items())]
        _write_section(formatter, "Exit codes", codes)
        formatter.write_paragraph()
        _write_prose(formatter, self.default_kind.value)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, those of an option that takes many joined to one."""
        names = {name for each in self.get_params(ctx) for name in (*each.opts, *each.secondary_opts)}
        takers = {
            name
            for each in self.params
            if isinstance(each, GroupedOption) and each.takes_many
            for name in each.opts
        }
        joined: list[str] = []
        is_taking = False
        for place, argument in enumerate(args):
            is_option = argument in names or argument.startswith("--")
            if is_taking and not is_option and args[place - 1] not in takers:
                joined[-1] += f"{_NUL}{argument}"
            else:
                joined.append(argument)
            is_taking = argument in takers or (is_taking and not is_option)
        return super().parse_args(ctx, joined)

    def invoke(self, ctx: click.Context) -> int:
        """Run the function and return its exit code."""
        callback = self.callback
        assert callback is not None
        kind = self.kind if isinstance(self.kind, CommandKind) else self.kind(ctx.params)
        if ctx.obj is WHOLE_PROCESS:
            _collect_rarely(answers=kind is CommandKind.ANSWER)

        debug = bool(ctx.params.pop("debug", False))
        takes_stop = "stop" in inspect.signature(callback).parameters

        def work(stop: threading.Event) -> int:
            exit_code: int = callback(**ctx.params, **({"stop": stop} if takes_stop else {}))
            return exit_code

        exit_code = main_guard(work, debug=debug, kind=kind)
        if ctx.obj is WHOLE_PROCESS and kind is CommandKind.ANSWER:
            _end_at_once(exit_code)
        return exit_code


def _end_at_once(exit_code: int) -> NoReturn:
    """End the process of a command that has answered, which leaves nothing to end.

    Arrow's threads may still read for a query that failed. Python would wait for them for ever, or abort.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a pipe without a reader
            stream.flush()
    os._exit(exit_code)


class PipelineGroup(click.Group):
    """The commands, under the headings of their sections."""

    def sections(self) -> dict[str, list[PipelineCommand]]:
        """Return the commands by section, in the order in which they were added."""
        found: dict[str, list[PipelineCommand]] = {}
        for command in self.commands.values():
            assert isinstance(command, PipelineCommand)
            found.setdefault(command.section, []).append(command)
        return found

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order in which they were added."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of each section with what they do."""
        for heading, commands in self.sections().items():
            with formatter.section(heading):
                formatter.write_dl([(each.name or "", each.short_help or "") for each in commands])
        _write_section(formatter, "Exit codes", [(str(code), text) for code, text in EXIT_CODES.items()])


def command(
    name: str,
    *,
    section: str,
    short_help: str,
    examples: Sequence[tuple[str, str]] = (),
    exit_codes: ExitCodes | None = None,
    kind: CommandKind | Callable[[Mapping[str, Any]], CommandKind] = CommandKind.ANSWER,
) -> Callable[[Callable[..., int]], PipelineCommand]:
    """Make a command of a function, whose docstring is the description."""
    return click.command(
        name,
        cls=PipelineCommand,
        section=section,
        short_help=short_help,
        examples=examples,
        exit_codes=exit_codes,
        kind=kind,
        context_settings=HELP,  # also of a job, which is no part of a group
    )


def option(*names: str, group: str, **attributes: Any) -> Callable[[Function], Function]:
    """Declare an option of a command, in a group of its help."""
    return click.option(*names, cls=GroupedOption, group=group, **attributes)


def flag(*names: str, group: str, **attributes: Any) -> Callable[[Function], Function]:
    """Declare an option without a value."""
    return option(*names, group=group, is_flag=True, **attributes)


def _collect_rarely(*, answers: bool) -> None:
    """Let the garbage collector not search for cycles at the end of the process, and rarely until then.

    A command that answers keeps most objects until it ends: modules, classes and what it prints. A job keeps
    what it knows of each table, and what it drops may hold much memory.
    """
    gc.set_threshold(_NEW_OBJECTS if answers else _NEW_OBJECTS_OF_A_JOB)
    atexit.register(gc.freeze)


def _write_section(formatter: click.HelpFormatter, heading: str, records: Iterable[tuple[str, str]]) -> None:
    with formatter.section(heading):
        formatter.write_dl(list(records), col_max=_COLUMN)


def _write_prose(formatter: click.HelpFormatter, text: str) -> None:
    indent = " " * formatter.current_indent
    prose = click.wrap_text(text, formatter.width, initial_indent=indent, subsequent_indent=indent)
    formatter.write(f"{prose}\n")
