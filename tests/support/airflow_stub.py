"""As much of Airflow's task SDK as `pgdelta.airflow` uses, for tests where Airflow is not installed."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

MISSING = object()


class Refusal(Exception):
    """The base of Airflow's exceptions."""


class ForGood(Refusal):
    """A failure without another try."""


class Skipped(Refusal):
    """A task that is skipped."""


class StubOperator:
    """Keeps its arguments, and what it is set before."""

    poke_interval, timeout = 60.0, 3600.0

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.task_id = arguments.get("task_id", "task")
        self.trigger_rule = arguments.get("trigger_rule", "all_success")
        self.log = logging.getLogger("stub")
        self.downstream: list[str] = []
        self.deferred: dict[str, Any] = {}
        if StubDag.current is not None:
            StubDag.current.tasks[self.task_id] = self

    def __rshift__(self, other: StubOperator) -> StubOperator:
        self.downstream.append(other.task_id)
        return other

    def __rrshift__(self, others: list[StubOperator]) -> StubOperator:
        for each in others:
            each.downstream.append(self.task_id)
        return self

    def defer(self, **arguments: Any) -> None:
        self.deferred = arguments


class StubDag:
    """Collects the tasks of a `with` block."""

    current: StubDag | None = None

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments
        self.dag_id = arguments["dag_id"]
        self.tasks: dict[str, StubOperator] = {}

    def __enter__(self) -> StubDag:
        StubDag.current = self
        return self

    def __exit__(self, *_: object) -> None:
        StubDag.current = None


class StubAsset(str):
    """An asset, or an alias, by its name."""

    __slots__ = ()

    @property
    def name(self) -> str:
        return str(self)


class StubValues:
    """Airflow's connections and variables, by key."""

    connections: ClassVar[dict[str, Any]] = {}
    variables: ClassVar[dict[str, str]] = {}
    masked: ClassVar[list[str]] = []

    @classmethod
    def get_connection(cls, key: str) -> Any:
        return cls.connections[key]

    @classmethod
    def get(cls, key: str) -> str:
        return cls.variables[key]


class StubEvents(list[Any]):
    """The events of an asset, as a task reads them."""

    def ascending(self, _: bool) -> StubEvents:
        return self

    def limit(self, _: int) -> StubEvents:
        return self


class StubOutlets(dict[str, Any]):
    """What a task emits: the extra of each asset, also of those that an alias has."""

    class Outlet:
        def __init__(self) -> None:
            self.extra: dict[str, Any] = {}
            self.added: dict[str, Any] = {}

        def add(self, asset: StubAsset, extra: dict[str, Any]) -> None:
            self.added[asset.name] = extra

    def __missing__(self, key: str) -> StubOutlets.Outlet:
        found = self[key] = self.Outlet()
        return found


class StubHook:
    """Runs no command, and ends with what it is set to."""

    commands: ClassVar[list[tuple[list[str], dict[str, str]]]] = []
    ends: tuple[int, str] = (0, "")

    def run_command(self, command: list[str], env: dict[str, str], cwd: str | None) -> Any:
        del cwd
        self.commands.append((command, env))
        return type("Done", (), {"exit_code": self.ends[0], "output": self.ends[1]})()


MODULES: dict[str, dict[str, Any]] = {
    "airflow": {},
    "airflow.providers": {},
    "airflow.providers.standard": {},
    "airflow.providers.standard.hooks": {},
    "airflow.providers.standard.hooks.subprocess": {"SubprocessHook": StubHook},
    "airflow.providers.standard.operators": {},
    "airflow.providers.standard.operators.empty": {"EmptyOperator": StubOperator},
    "airflow.sdk": {
        "DAG": StubDag,
        "Asset": StubAsset,
        "AssetAlias": StubAsset,
        "BaseHook": StubValues,
        "BaseOperator": StubOperator,
        "BaseSensorOperator": StubOperator,
        "Param": lambda value, **_: value,
        "TriggerRule": SimpleNamespace(ALL_DONE="all_done"),
        "Variable": StubValues,
    },
    "airflow.sdk.exceptions": {
        "AirflowException": Refusal,
        "AirflowFailException": ForGood,
        "AirflowSkipException": Skipped,
    },
    "airflow.sdk.log": {"mask_secret": StubValues.masked.append},
    "airflow.triggers": {},
    "airflow.triggers.base": {"BaseTrigger": StubOperator, "TriggerEvent": dict},
}


@contextmanager
def stubbed_airflow() -> Iterator[ModuleType]:
    """Give `pgdelta.airflow`, imported with the stub in Airflow's place."""
    before = {name: sys.modules.get(name, MISSING) for name in (*MODULES, "pgdelta.airflow")}
    for name, content in MODULES.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(content)
    sys.modules.pop("pgdelta.airflow", None)
    try:
        yield importlib.import_module("pgdelta.airflow")
    finally:
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not MISSING:
                sys.modules[name] = module  # type: ignore[assignment]
