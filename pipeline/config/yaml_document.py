"""A YAML file as nested values with their places in the file.

In: the text of a YAML file and an environment. Out: a `Document`, whose `root` is made of `Section` (a
mapping), `Items` (a list) and `Scalar`, ready for pydantic, and which turns the location of a mistake into
`file:line: key: …`. A `Scalar` expands `${VARIABLE}` and `${VARIABLE:-default}` when it is read; keys are
never expanded. No error shows a value, because it could be a secret, nor a key that does not have the form of
one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

import yaml

from pipeline.errors import ConfigError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TAG = "tag:yaml.org,2002:"
# Any other key may be a connection string in the wrong place.
_KEY = re.compile(r"[^:@=\n]{1,63}")
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_SURROGATE = re.compile("[\ud800-\udfff]")
# What ends a quoted value, what a terminal or an editor would act on, and what YAML allows as an escape only.
_NEEDS_ESCAPE = re.compile(r'["\\\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ufffe\uffff]')
_KINDS = {
    "str": "text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
    "timestamp": "a date",
}


class Scalar:
    """A single value: its text in the file, and how YAML reads it."""

    __slots__ = ("_environ", "_tag", "line", "written")

    def __init__(self, node: yaml.ScalarNode, environ: Mapping[str, str]) -> None:
        self.line = _line_of(node)
        self.written = str(node.value)
        self._tag = str(node.tag).removeprefix(_TAG)
        self._environ = environ

    @property
    def kind(self) -> str:
        """The kind of value, in words."""
        return _KINDS.get(self._tag, "something else")

    @property
    def is_text(self) -> bool:
        """Whether YAML reads the value as text."""
        return self._tag == "str"

    @property
    def is_null(self) -> bool:
        """Whether YAML reads the value as nothing."""
        return self._tag == "null" and bool(self.written)

    @property
    def boolean(self) -> bool | None:
        """The value as YAML's true or false, None if it is neither."""
        return bool(yaml.SafeLoader.bool_values[self.written.lower()]) if self._tag == "bool" else None

    @property
    def has_variables(self) -> bool:
        """Whether the value depends on the environment."""
        return "${" in self.written

    @property
    def without_variables(self) -> str:
        """The text of the file, with the default of each variable in its place."""
        return _VARIABLE.sub(lambda match: match.group(2) or "", self.written)

    def expand(self) -> str:
        """Return the text with its variables expanded; raise ValueError with a sentence if that fails."""
        if "${" in _VARIABLE.sub("", self.written):
            raise ValueError("Incomplete variable. Write ${NAME} or ${NAME:-default}.")
        text = _VARIABLE.sub(self._look_up, self.written)
        if _SURROGATE.search(text):
            raise ValueError("Value is not valid Unicode. Correct its escape sequences.")
        return text

    def _look_up(self, match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        value = self._environ.get(name)
        # as in a shell, the default of `:-` also replaces a variable that is set but empty
        if default is not None:
            return value or str(default)
        if value is None:
            raise ValueError(f"Variable {name} is not set. Set it, or write ${{{name}:-default}}.")
        return value


class Section(dict[str, object]):
    """A mapping, and the line of each key."""

    kind = "a section of keys"

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line
        self.key_lines: dict[str, int] = {}


class Items(list[object]):
    """A list."""

    kind = "a list"

    def __init__(self, line: int) -> None:
        super().__init__()
        self.line = line


class Document:
    """The values of one file."""

    def __init__(self, file: str, root: Section) -> None:
        self.file = file
        self.root = root

    def get(self, *location: str | int) -> object:
        """Return the value at a location, None if the file has none."""
        found: object = self.root
        for part in location:
            if isinstance(found, Section) and isinstance(part, str):
                found = found.get(part)
            elif isinstance(found, Items) and isinstance(part, int) and part < len(found):
                found = found[part]
            else:
                return None
        return found

    def line(self, *location: str | int, at_key: bool = False) -> int:
        """Return the line of a value or of its key; for a missing one, of what would contain it."""
        above = self.get(*location[:-1])
        if at_key and isinstance(above, Section) and location[-1] in above.key_lines:
            return above.key_lines[str(location[-1])]
        found = self.get(*location)
        if isinstance(found, (Scalar, Section, Items)):
            return found.line
        return self.line(*location[:-1]) if location else 1

    def error(self, sentence: str, *location: str | int, at_key: bool = False) -> ConfigError:
        """Return the error for a mistake at a location."""
        line = self.line(*location, at_key=at_key)
        key = f"{dotted(location)}: " if location else ""
        return ConfigError(f"{self.file}:{line}: {key}{sentence}")


def quote_yaml(text: str) -> str:
    """Return a text as a double-quoted YAML value on one line, which `parse_document` reads as it is.

    A text with `${` would be read as a variable; it is not for this function.
    """
    return '"' + _NEEDS_ESCAPE.sub(_escape, text) + '"'


def _escape(found: re.Match[str]) -> str:
    letter = found[0]
    return f"\\{letter}" if letter in '"\\' else f"\\U{ord(letter):08x}"


def write_yaml(content: object) -> str:
    """Return data as a YAML document, in the order that it has."""
    without_aliases = json.loads(json.dumps(content))
    return str(yaml.safe_dump(without_aliases, sort_keys=False, allow_unicode=True, width=100))


def dotted(location: Sequence[str | int]) -> str:
    """Return a location as people write it, such as `tables[0].source`."""
    found = ""
    for part in location:
        if isinstance(part, int):
            found += f"[{part}]"
        else:
            found += ("." if found else "") + (part if _KEY.fullmatch(part) else "…")
    return found


def parse_document(text: str, file: str, environ: Mapping[str, str]) -> Document:
    """Return the values of a file; raise ConfigError unless it is one YAML mapping with unique keys."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise ConfigError(f"{file}: The file is empty. Start from conf/pipeline.yaml.")
        if not isinstance(node, yaml.MappingNode):
            found = _Reader(file, environ).read(node, ())
            raise ConfigError(f"{file}:{found.line}: Expected a section of keys, found {found.kind}.")
        root = _Reader(file, environ).read(node, ())
        assert isinstance(root, Section)
        return Document(file, root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = _QUOTED.sub(_hide, error.problem or error.context or "").rstrip(".")
        line = f":{mark.line + 1}" if mark else ""
        if "'\\t'" in (error.problem or ""):
            raise ConfigError(f"{file}{line}: Tab in the indentation. Indent with spaces.") from None
        raise ConfigError(f"{file}{line}: Not valid YAML: {problem}. Correct the syntax.") from None
    except yaml.YAMLError:
        raise ConfigError(
            f"{file}: Not valid YAML: a character is not allowed. Remove control characters."
        ) from None
    except RecursionError:
        raise ConfigError(f"{file}: Not valid YAML: nested too deeply. Reduce the nesting.") from None


class _Reader:
    """Turns nodes into values, each node once: aliases share their value, also an endless one."""

    def __init__(self, file: str, environ: Mapping[str, str]) -> None:
        self._file, self._environ = file, environ
        self._read: dict[int, Scalar | Section | Items] = {}

    def read(self, node: yaml.Node, location: tuple[str | int, ...]) -> Scalar | Section | Items:
        if id(node) in self._read:
            return self._read[id(node)]
        found: Scalar | Section | Items
        if isinstance(node, yaml.MappingNode):
            found = self._read[id(node)] = Section(_line_of(node))
            for key_node, value in node.value:
                name = self._read_key(key_node, location)
                if name in found:
                    raise self._error(key_node, (*location, name), "Duplicate key. Keep one.")
                found[name] = self.read(value, (*location, name))
                found.key_lines[name] = _line_of(key_node)
        elif isinstance(node, yaml.SequenceNode):
            found = self._read[id(node)] = Items(_line_of(node))
            for index, item in enumerate(node.value):
                found.append(self.read(item, (*location, index)))
        else:
            assert isinstance(node, yaml.ScalarNode)
            found = self._read[id(node)] = Scalar(node, self._environ)
        return found

    def _read_key(self, node: yaml.Node, location: tuple[str | int, ...]) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag == _TAG + "merge":
            raise self._error(node, location, "Not a plain key. Write `key: value`.")
        if _SURROGATE.search(node.value):
            raise self._error(node, location, "Key is not valid Unicode. Correct its escape sequences.")
        return str(node.value)

    def _error(self, node: yaml.Node, location: tuple[str | int, ...], sentence: str) -> ConfigError:
        key = f"{dotted(location)}: " if location else ""
        return ConfigError(f"{self._file}:{_line_of(node)}: {key}{sentence}")


def _line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _hide(quoted: re.Match[str]) -> str:
    """Return a quoted sign or `<token>` of YAML's own, and `…` for a word, which could be a secret."""
    text = quoted[1] or quoted[2] or ""
    return quoted[0] if len(text) < 2 or text.startswith("<") else "…"
