"""Text in a table or line of the terminal: shown as it is, whatever a name of the source holds."""

from rich.markup import escape as escape_markup

from pipeline.errors import one_line


def escape(text: str) -> str:
    """Return a text that is neither markup nor a control of the terminal."""
    return escape_markup(one_line(text))
