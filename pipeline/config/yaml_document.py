"""A YAML file whose every value knows its file, line and key.

In: the text of a YAML file and an environment. Out: a `Section` that is asked for its keys one by one, and
that says which keys nobody asked for. Every mistake is a `ConfigError` of the form `file:line: key:
sentence`. `${VAR}` and `${VAR:-default}` are expanded in strings only, never in keys. A value is never shown
where it could hold a secret: messages speak of keys, types and allowed words.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping

import yaml

from pipeline.errors import ConfigError

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")
_TAG = "tag:yaml.org,2002:"
# Keys that are shown in full; another one may be a conninfo that went astray.
_KEY = re.compile(r"[^:@=\n]{1,63}")
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_BYTE_UNITS = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
_KINDS = {
    "str": "a text",
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
    "timestamp": "a date",
    "seq": "a list",
    "map": "a section",
}


class Value:
    """Hold one node of the file together with its file, environment and dotted key."""

    __slots__ = ("environ", "file", "key", "node")

    def __init__(self, file: str, environ: Mapping[str, str], key: str, node: yaml.Node) -> None:
        self.file, self.environ, self.key, self.node = file, environ, key, node

    def error(self, sentence: str) -> ConfigError:
        """Return the error that names this value's place."""
        line = self.node.start_mark.line + 1
        key = f"{self.key}: " if self.key else ""
        return ConfigError(f"{self.file}:{line}: {key}{sentence}")

    @property
    def kind(self) -> str:
        """Return what YAML takes this value for, in words."""
        return _KINDS.get(self.node.tag.removeprefix(_TAG), "something else")

    def section(self) -> Section:
        """Return the value as a section, or refuse it."""
        return Section(self)

    def items(self) -> Iterator[Value]:
        """Yield the values of a list, keyed `key[0]`, `key[1]` …, or refuse what is not a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(f"a list is expected, not {self.kind}")
        for index, node in enumerate(self.node.value):
            yield Value(self.file, self.environ, f"{self.key}[{index}]", node)

    def text(self) -> str:
        """Return a string with its variables expanded, or refuse an unset variable and any other type."""
        if not self._is("str"):
            hint = "; put it in quotes" if isinstance(self.node, yaml.ScalarNode) and self.node.value else ""
            raise self.error(f"a text is expected, not {self.kind}{hint}")
        text = _VARIABLE.sub(self._lookup, self.node.value)
        if "${" in _VARIABLE.sub("", self.node.value):
            raise self.error("`${` opens no variable; write ${NAME} or ${NAME:-default}")
        if not text:
            raise self.error("it is empty; write a value or leave the key out")
        if "\0" in text:
            raise self.error("it holds a NUL character, which PostgreSQL allows nowhere")
        return text

    def written(self) -> str:
        """Return the string as the file has it, where each variable without a default leaves nothing."""
        return _VARIABLE.sub(lambda match: match.group(2) or "", str(self.node.value))

    def boolean(self) -> bool:
        """Return true or false, also from a variable that expands to one of these words."""
        if self._is("bool"):
            return bool(yaml.SafeLoader.bool_values[self.node.value.lower()])
        if self._is("str") and "${" in self.node.value:
            word = self.text().lower()
            if word in ("true", "false"):
                return word == "true"
        raise self.error(f"true or false is expected, not {self.kind}")

    def number(self, least: int, most: int) -> int:
        """Return a whole number between two others, also from a variable."""
        text = self._plain()
        if not re.fullmatch(r"\d{1,18}", text) or not least <= int(text) <= most:
            raise self.error(f"a whole number from {least} to {most} is expected")
        return int(text)

    def byte_count(self) -> int:
        """Return bytes, written as a number or with kB, MB or GB behind it as PostgreSQL does."""
        match = re.fullmatch(r"(\d{1,12})\s*(B|kB|MB|GB)?", self._plain())
        if match is None:
            raise self.error("a number of bytes is expected, such as 500kB, 20MB or 1GB")
        return int(match[1]) * _BYTE_UNITS[match[2] or "B"]

    def limit(self) -> int | None:
        """Return a whole number, or None for the word `none`: no limit."""
        text = self._plain()
        if text != "none" and not re.fullmatch(r"\d{1,18}", text):
            raise self.error("a whole number is expected, or none for no limit")
        return None if text == "none" else int(text)

    def _plain(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(f"a number is expected, not {self.kind}")
        return self.text() if "${" in self.node.value else str(self.node.value)

    def choice(self, built: Iterable[str], planned: Iterable[str] = ()) -> str:
        """Return one of the built words; refuse a planned one as not built yet and any other as unknown."""
        built, planned = tuple(built), tuple(planned)
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(f"one of {', '.join(built)} is expected, not {self.kind}")
        # the word itself, not its type: YAML reads `off` as false and `1` as a number
        word = self.text() if "${" in self.node.value else str(self.node.value)
        if word in planned:
            raise self.error(f"{word} is not built yet; leave the key out or write {' or '.join(built)}")
        if word not in built:
            raise self.error(f"unknown value; write {' or '.join(built)}{_suggest(word, built)}")
        return word

    def _is(self, kind: str) -> bool:
        return isinstance(self.node, yaml.ScalarNode) and self.node.tag == _TAG + kind

    def _lookup(self, match: re.Match[str]) -> str:
        name, default = match.group(1), match.group(2)
        # as in a shell, `:-` covers a variable that is set and empty
        value = self.environ.get(name, "") if default is not None else self.environ.get(name)
        if value:
            return value
        if default is not None:
            return str(default)
        if value is None:
            raise self.error(f"the environment has no {name}; set it or write ${{{name}:-default}}")
        return ""


class Section:
    """Hold the keys of one mapping and remember which of them were asked for."""

    __slots__ = ("_asked", "_values", "value")

    def __init__(self, value: Value) -> None:
        if not isinstance(value.node, yaml.MappingNode):
            raise value.error(f"a section of keys is expected, not {value.kind}")
        self.value = value
        self._asked: list[str] = []
        self._values: dict[str, Value] = {}
        for key_node, node in value.node.value:
            place = Value(value.file, value.environ, value.key, key_node)
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == _TAG + "merge":
                raise place.error("a key must be a plain word")
            name = str(key_node.value)
            shown = name if _KEY.fullmatch(name) else "…"
            full = f"{value.key}.{shown}" if value.key else shown
            if name in self._values:
                raise Value(value.file, value.environ, full, key_node).error(
                    "the key is written twice; keep one"
                )
            self._values[name] = Value(value.file, value.environ, full, node)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def get(self, key: str) -> Value | None:
        """Return the value of a key, None where it is not written."""
        self._asked.append(key)
        return self._values.get(key)

    def values(self) -> dict[str, Value]:
        """Return every key with its value; all of them count as asked for."""
        self._asked.extend(self._values)
        return dict(self._values)

    def text(self, key: str, default: str) -> str:
        """Return a key's text, or the default."""
        value = self.get(key)
        return default if value is None else value.text()

    def boolean(self, key: str, default: bool) -> bool:
        """Return a key's true or false, or the default."""
        value = self.get(key)
        return default if value is None else value.boolean()

    def number(self, key: str, default: int, *, least: int, most: int) -> int:
        """Return a key's whole number, or the default."""
        value = self.get(key)
        return default if value is None else value.number(least, most)

    def byte_count(self, key: str, default: int) -> int:
        """Return a key's number of bytes, or the default."""
        value = self.get(key)
        return default if value is None else value.byte_count()

    def limit(self, key: str, default: int | None) -> int | None:
        """Return a key's limit, or the default; None is no limit."""
        value = self.get(key)
        return default if value is None else value.limit()

    def choice(self, key: str, default: str, built: Iterable[str], planned: Iterable[str] = ()) -> str:
        """Return a key's word, or the default."""
        value = self.get(key)
        return default if value is None else value.choice(built, planned)

    def section(self, key: str) -> Section:
        """Return a key's section; one that is not written is empty."""
        value = self.get(key)
        if value is None:
            mark = self.value.node.start_mark
            empty = yaml.MappingNode(_TAG + "map", [], mark, mark)
            value = Value(self.value.file, self.value.environ, f"{self.value.key}.{key}".lstrip("."), empty)
        return value.section()

    def finish(self) -> None:
        """Refuse the first key that nobody asked for, with the nearest known one."""
        for name, value in self._values.items():
            if name not in self._asked:
                hint = _suggest(name, self._asked) or f"; known here: {', '.join(self._asked)}"
                line = next(key.start_mark.line for key, _ in self.value.node.value if key.value == name) + 1
                raise ConfigError(f"{value.file}:{line}: {value.key}: unknown key{hint}")


def parse_document(text: str, file: str, environ: Mapping[str, str]) -> Section:
    """Return the file's top section, or refuse text that is not one YAML mapping."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = _QUOTED.sub(_hide, error.problem or error.context or "")
        line = f":{mark.line + 1}" if mark else ""
        if "'\\t'" in (error.problem or ""):
            raise ConfigError(f"{file}{line}: a tab where YAML wants spaces; indent with spaces") from None
        raise ConfigError(f"{file}{line}: not valid YAML: {problem}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{file}: not valid YAML: it holds a character that YAML does not allow") from None
    except RecursionError:
        raise ConfigError(f"{file}: not valid YAML: it is nested too deeply") from None
    if node is None:
        raise ConfigError(f"{file}: the file is empty; start from conf/pipeline.yaml")
    return Section(Value(file, environ, "", node))


def _hide(quoted: re.Match[str]) -> str:
    """Return a quoted sign or `<token>` of YAML's own; a word could be a secret that was written bare."""
    text = quoted[1] or quoted[2] or ""
    return quoted[0] if len(text) < 2 or text.startswith("<") else "…"


def _suggest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""
