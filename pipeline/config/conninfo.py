"""A connection string that knows which program prints its password.

It is a `str`, so whatever passes a connection string on also passes the program on. The program is run where
connections are opened (`postgres/connection`), never here.
"""

from __future__ import annotations

from collections.abc import Sequence


class CommandConninfo(str):
    """libpq keywords or a URI, with a program that prints the password at each connection.

    `password_command` is the program and its arguments, `key` the configuration's key that names it.
    """

    __slots__ = ("key", "password_command")

    password_command: tuple[str, ...]
    key: str

    def __new__(cls, text: str, password_command: Sequence[str], key: str) -> CommandConninfo:
        """Return the text with the program."""
        found = super().__new__(cls, text)
        found.password_command = tuple(password_command)
        found.key = key
        return found

    def __reduce__(self) -> tuple[type[CommandConninfo], tuple[str, tuple[str, ...], str]]:
        """Return what makes a copy."""
        return CommandConninfo, (str(self), self.password_command, self.key)

    def with_text(self, text: str) -> CommandConninfo:
        """Return another text with the same program."""
        return CommandConninfo(text, self.password_command, self.key)


def with_password_command(conninfo: str, password_command: Sequence[str], key: str) -> str:
    """Return the connection string with this program, or without one if the sequence is empty."""
    text = str(conninfo)
    return CommandConninfo(text, password_command, key) if password_command else text
