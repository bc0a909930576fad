"""The page of the command line is what the commands say."""

import re

import click

from pipeline.cli.main import cli
from tests.support.paths import ROOT
from tools.reference_cli import reference

PAGE = ROOT / "docs" / "reference" / "command-line.md"


def test_the_page_is_generated_from_the_commands() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), (
        "run python -m tools.reference_cli > docs/reference/command-line.md"
    )


def test_every_command_and_option_is_on_the_page() -> None:
    text = reference()
    for name, command in cli.commands.items():
        section = re.search(rf"\n## pgdelta {name}\n(.*?)(?=\n## |\Z)", text, re.DOTALL)
        assert section, name
        arguments = command.collect_usage_pieces(click.Context(command))
        options = [
            each for option in command.params if isinstance(option, click.Option) for each in option.opts
        ]
        assert all(f"`{each}" in section[1] or f" {each}" in section[1] for each in [*arguments, *options])
