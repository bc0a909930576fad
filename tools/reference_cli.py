"""Print the Markdown reference of all commands, which is the page docs/reference/command-line.md.

Everything comes from the click objects that also print `--help`; a test holds the page to them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click

from pipeline.cli.command import EXIT_CODES, PROGRAM, PipelineCommand
from pipeline.cli.main import cli

_ABOUT = """\
<!-- Written by `python -m tools.reference_cli`; change the commands under pipeline/cli instead. -->

# Command line

`pgdelta COMMAND --help` prints what this page says of a command. `spark-submit jobs/ingest.py` and
`spark-submit jobs/apply.py` take the options of `pgdelta ingest` and `pgdelta apply`.
`python -m pipeline.cli` is `pgdelta` without its script.

`PGDELTA_CONFIG` in the environment is the default of `--config`. In a terminal, pages fit its width; in a
pipe every line is complete, unless `COLUMNS` sets a width. `NO_COLOR` turns colours off.
"""


def reference() -> str:
    """Return the page."""
    return "\n".join(_lines()).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    yield _ABOUT
    for section, commands in cli.sections().items():
        yield f"**{section}**\n"
        for command in commands:
            yield f"- [`{PROGRAM} {command.name}`](#pgdelta-{command.name}): {command.short_help}"
        yield ""
    yield "## Exit codes\n"
    yield from _table(("code", "meaning"), [(str(code), text) for code, text in EXIT_CODES.items()])
    yield "Where a command's codes mean more, its section says so. A failure is one sentence on stderr, to"
    yield "which `--debug` adds the stack trace. A command that commits exits with 130 at a second Ctrl-C.\n"
    for commands in cli.sections().values():
        for command in commands:
            yield from _command(command)


def _command(command: PipelineCommand) -> Iterator[str]:
    parent = click.Context(cli, info_name=PROGRAM, **cli.context_settings)
    context = click.Context(command, parent, info_name=command.name)
    yield f"## pgdelta {command.name}\n"
    yield f"```\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    for paragraph in command.paragraphs:
        yield f"{_prose(paragraph)}\n"
    if command.examples:
        yield "```sh"
        for comment, line in command.examples:
            yield f"# {comment}\n{line}"
        yield "```\n"
    for heading, options in command.option_groups(context).items():
        records = [record for each in options if (record := each.get_help_record(context)) is not None]
        rows = [(f"`{names}`", _prose(help)) for names, help in records]
        yield from _table((heading, ""), rows)
    codes = {code: text for code, text in command.exit_codes.items() if EXIT_CODES.get(code) != text}
    codes.pop(130, None)
    if codes:
        yield from _table(("exit code", ""), [(str(code), text) for code, text in sorted(codes.items())])
    yield f"{command.default_kind.value}\n"


def _prose(text: str) -> str:
    """Return a help text whose placeholders and globs are no markup."""
    return " ".join(text.split()).replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;")


def _table(headings: tuple[str, str], rows: list[tuple[str, str]]) -> Iterator[str]:
    for row in (headings, ("---", "---"), *rows):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"
    yield ""


if __name__ == "__main__":
    sys.stdout.write(reference())
