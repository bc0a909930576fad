"""Delta's log in the JVM: its names are looked up once for each JVM."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import SparkSession

from pipeline.lake.delta_log import delta_log, newest_snapshot


class Jvm:
    """Stands for py4j's view of the JVM, and writes down the names that it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return Name(self, name)


class Name:
    def __init__(self, jvm: Jvm, text: str) -> None:
        self._jvm = jvm
        self._text = text

    def __getattr__(self, name: str) -> Any:
        return Name(self._jvm, f"{self._text}.{name}")

    def __call__(self, *arguments: Any) -> Any:
        return Name(self._jvm, f"{self._text}(…)")


class Session:
    def __init__(self) -> None:
        self._jvm = Jvm()
        self._jsparkSession = object()


def test_names_are_looked_up_once_for_each_jvm() -> None:
    first, second = Session(), Session()
    for session in (first, second):
        delta_log(cast(SparkSession, session), "a")
        asked = len(session._jvm.asked)
        newest_snapshot(cast(SparkSession, session), "a")
        newest_snapshot(cast(SparkSession, session), "b")
        assert 0 < len(session._jvm.asked) == asked
