"""Programs of random lives: steps of SQL, drawn by weight from a table of kinds."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from random import Random
from typing import Literal

from tests.support.source_life import structure
from tests.support.source_life.changes import draw_changes, insert
from tests.support.source_life.tables import Life, LifeTable, creation

Place = Literal["source", "silver", "jobs"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of step: how often it is drawn, what makes its statements, and the first major that has it.

    The statements of an `apart` kind are transactions of their own.
    """

    weight: int
    draw: Callable[[Life, LifeTable], list[str]]
    since: int = 13
    apart: bool = False


KINDS = (
    Kind(3, structure.add_column),
    Kind(3, structure.add_with_default),
    Kind(2, structure.add_with_volatile_default),
    Kind(2, structure.drop_column),
    Kind(2, structure.rename_column),
    Kind(1, structure.swap_columns),
    Kind(2, structure.drop_and_add_column),
    Kind(2, structure.widen),
    Kind(1, structure.widen_key),
    Kind(2, structure.change_type),
    Kind(3, structure.rewrite),
    Kind(2, structure.change_identity),
    Kind(1, structure.replace_key),
    Kind(1, structure.note),
    Kind(2, structure.truncate),
    Kind(2, structure.new_files, apart=True),
    Kind(1, structure.rename_table, apart=True),
    Kind(1, structure.swap_tables, apart=True),
    Kind(1, structure.drop_and_create, apart=True),
    Kind(1, structure.create_table, apart=True),
    Kind(1, structure.drop_table, apart=True),
    Kind(2, structure.detach_and_attach, apart=True),
    Kind(2, structure.replace_partition, apart=True),
    Kind(2, structure.truncate_partition, apart=True),
    Kind(3, structure.change_persistence, apart=True),
    Kind(1, structure.leave_operations_out, apart=True),
    Kind(1, structure.leave_and_return, apart=True),
    Kind(1, structure.change_roles, apart=True),
    Kind(1, structure.change_settings, apart=True),
    Kind(1, structure.inherit, apart=True),
    Kind(1, structure.change_composite, apart=True),
    Kind(1, structure.rename_label, apart=True),
    Kind(1, structure.change_column_list, since=15, apart=True),
    Kind(1, structure.own_publication_again, apart=True),
)
#: What analysts do to silver tables.
ANALYST = ("delete", "append", "compact", "add column", "set property", "drop column", "rename column")


@dataclass(frozen=True, slots=True)
class Step:
    """Statements at the source; what an analyst does to a silver table; or what the jobs do meanwhile."""

    kind: str
    statements: tuple[str, ...]
    place: Place = "source"

    def __str__(self) -> str:
        if self.place != "source":
            return f"-- {self.place}: {self.kind} {' '.join(self.statements)}".rstrip()
        return "\n".join([f"-- {self.kind}", *(f"{each};" for each in self.statements)])


@dataclass(frozen=True, slots=True)
class Program:
    """The life of a source: how it begins, and rounds of steps. Silver is judged after each round.

    `settings` are those under `silver`, `rule` those of the rule of all tables.
    """

    seed: int
    major: int
    publication: str
    via_root: bool
    settings: dict[str, str]
    rule: dict[str, str]
    setup: tuple[str, ...]
    rounds: tuple[tuple[Step, ...], ...]

    def __str__(self) -> str:
        root = "true" if self.via_root else "false"
        lines = [
            f"-- seed {self.seed}, PostgreSQL {self.major}, publication {self.publication}",
            f"-- publish_via_partition_root = {root}, {self.settings | self.rule}",
            *(f"{each};" for each in self.setup),
        ]
        for number, steps in enumerate(self.rounds):
            lines += [f"-- round {number}", *map(str, steps)]
        return "\n".join(lines)


def make_program(seed: int, major: int, *, rounds: int = 3, steps: int = 6) -> Program:
    """Return the program of a seed on a major."""
    rng = Random(seed)
    life = Life(rng, major, rng.choice(("configured", "configured", "all", "listed")), rng.random() < 0.7)
    settings = {
        "rewrites": rng.choice(("compare", "compare", "resync", "event")),
        "resync": rng.choice(("ask", "auto")),
    }
    rule = {
        "type_changes": rng.choice(("hold", "rebuild", "resync")),
        "dropped_columns": rng.choice(("keep", "drop")),
        "dropped_partitions": rng.choice(("keep", "delete", "delete", "resync")),
    }
    setup = [
        statement
        for table in [life.new_table() for _ in range(3)]
        for statement in (*creation(table), *insert(life, table), *insert(life, table))
    ]
    made = tuple(tuple(_round(life, steps)) for _ in range(rounds))
    return Program(seed, major, life.publication, life.via_root, settings, rule, tuple(setup), made)


def _round(life: Life, steps: int) -> Iterator[Step]:
    if life.rng.random() < 0.25:
        yield Step(life.rng.choice(ANALYST), (life.rng.choice(life.tables).name,), "silver")
    for _ in range(steps):
        yield _transaction(life) if life.rng.random() < 0.6 else _apart(life)
        if life.rng.random() < 0.3:
            yield Step(life.rng.choice(("ingest", "ingest", "both")), (), "jobs")


def _transaction(life: Life) -> Step:
    """Return changes of rows and of structure in one transaction, which may be rolled back, or in parts."""
    before = deepcopy((life.tables, life.fresh))
    statements, names = ["BEGIN"], []
    for number in range(life.rng.randint(1, 4)):
        inner = deepcopy(life.tables)
        more, name = _inside(life)
        if life.rng.random() < 0.1:
            statements += [f"SAVEPOINT s{number}", *more, f"ROLLBACK TO SAVEPOINT s{number}"]
            life.tables = inner
        else:
            statements += more
        names.append(name)
    if life.rng.random() < 0.06:
        life.tables, life.fresh = before
        return Step(f"rolled back: {', '.join(names)}", (*statements, "ROLLBACK"))
    return Step(", ".join(names), (*statements, "COMMIT"))


def _inside(life: Life) -> tuple[list[str], str]:
    table = life.rng.choice(life.tables)
    if life.rng.random() < 0.3:
        kind = _draw_kind(life, apart=False)
        if statements := kind.draw(life, table):
            return statements, kind.draw.__name__
    return draw_changes(life, table), "changes"


def _apart(life: Life) -> Step:
    for _ in range(20):
        kind = _draw_kind(life, apart=life.rng.random() < 0.6)
        if statements := kind.draw(life, life.rng.choice(life.tables)):
            return Step(kind.draw.__name__, tuple(statements))
    return _transaction(life)


def _draw_kind(life: Life, *, apart: bool) -> Kind:
    kinds = [kind for kind in KINDS if kind.apart == apart and life.major >= kind.since]
    return life.rng.choices(kinds, [kind.weight for kind in kinds])[0]
