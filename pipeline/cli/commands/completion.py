"""`pgdelta completion`: the script by which a shell completes commands and options."""

import click
from click.shell_completion import get_completion_class

from pipeline.cli.command import COMPLETE_VARIABLE, PROGRAM, command


@command(
    "completion",
    section="Set up",
    short_help="Print the completion script of a shell.",
    examples=[
        ("bash 4.4 or newer, in ~/.bashrc", 'eval "$(pgdelta completion bash)"'),
        ("zsh, in ~/.zshrc after compinit", 'eval "$(pgdelta completion zsh)"'),
        ("fish", "pgdelta completion fish > ~/.config/fish/completions/pgdelta.fish"),
    ],
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> int:
    """Print the script by which a shell completes the commands and options of pgdelta."""
    completer = get_completion_class(shell)
    assert completer is not None
    any_group = click.Group(PROGRAM)  # the script only names the program, which it asks for the rest
    print(completer(any_group, {}, PROGRAM, COMPLETE_VARIABLE).source(), flush=True)
    return 0
