"""The attribute numbers that a column of a message may have always include its own, whatever was altered."""

from dataclasses import dataclass, field, replace
from random import Random

import pytest

from pipeline.bronze.column_numbers import CatalogHorizons, possible_numbers
from pipeline.postgres.attributes import Attribute, CatalogHorizon, TableAttributes
from pipeline.protocol.lsn import LSN
from tests.support.seeds import seed_of_run

NAMES = ("id", "ssn", "name", "x", "y")


@dataclass
class Table:
    """A table as DDL leaves it; transaction `n` has the id 10 + n and commits at LSN 100 n."""

    columns: list[Attribute] = field(default_factory=list)
    n: int = 0

    @property
    def xid(self) -> int:
        return 10 + self.n

    def add(self, name: str) -> None:
        self.columns.append(Attribute(len(self.columns) + 1, name, self.xid))

    def set_name(self, number: int, name: str | None) -> None:
        self.columns[number - 1] = Attribute(number, name, self.xid)

    @property
    def live(self) -> dict[str, int]:
        return {column.name: column.number for column in self.columns if column.name is not None}

    def alter(self, rng: Random) -> None:
        free = [name for name in NAMES if name not in self.live]
        kind = rng.choice(("add", "rename", "drop", "swap"))
        if kind == "add" and free:
            self.add(rng.choice(free))
        elif kind == "rename" and free and self.live:
            self.set_name(rng.choice(list(self.live.values())), rng.choice(free))
        elif kind == "drop" and len(self.live) > 1:
            self.set_name(rng.choice(list(self.live.values())), None)
        elif kind == "swap" and len(self.live) > 1:
            one, two = rng.sample(list(self.live), 2)
            first, second = self.live[one], self.live[two]
            self.set_name(first, two)
            self.set_name(second, one)

    def sent(self) -> list[tuple[str, int]]:
        return [(column.name, column.number) for column in self.columns if column.name is not None]

    def horizon(self) -> CatalogHorizon:
        return CatalogHorizon(LSN(100 * self.n + 50), self.xid + 1)


def table(*names: str) -> Table:
    made = Table()
    for name in names:
        made.add(name)
    return made


@pytest.mark.promise("protected columns")
def test_the_numbers_of_a_column_include_its_own() -> None:
    print(f"PGDELTA_SEED={(start := seed_of_run())}")
    exact = count = 0
    for seed in range(start, start + 4000):
        rng = Random(seed)
        now = table("id", "ssn", "name")
        messages: list[tuple[list[tuple[str, int]], int]] = []
        horizons = CatalogHorizons()
        for _ in range(rng.randint(1, 7)):
            now.n += 1
            for _ in range(rng.randint(0, 2)):  # DDL and rows in one transaction
                now.alter(rng)
                if rng.random() < 0.5:
                    messages.append((now.sent(), now.n))
            if rng.random() < 0.2:
                horizons.add(now.horizon())
            messages.append((now.sent(), now.n))
        found = TableAttributes(tuple(now.columns))
        for sent, n in messages:
            names, own = [name for name, _ in sent], [number for _, number in sent]
            numbers = possible_numbers(names, found, horizons.before(LSN(100 * n)))
            assert numbers is not None, (seed, names)
            assert all(a in b for a, b in zip(own, numbers, strict=True)), (seed, names, own, numbers)
            exact += numbers == [[number] for number in own]
            count += 1
    assert exact > count // 2


def test_the_numbers_include_its_own_before_the_transaction_is_visible() -> None:
    print(f"PGDELTA_SEED={(start := seed_of_run())}")
    for seed in range(start, start + 2000):
        rng = Random(seed)
        before = table("id", "ssn", "name", "x")
        for before.n in range(1, rng.randint(1, 4)):
            before.alter(rng)
        own = Table(list(before.columns), before.n + 1)
        sent = []
        for _ in range(rng.randint(0, 3)):
            own.alter(rng)
            sent.append(own.sent())
        sent.append(own.sent())
        # the catalog without the transaction's own changes, whose rows show that they were changed
        columns = [
            replace(column, is_changing=own.columns[i] != column) for i, column in enumerate(before.columns)
        ]
        found = TableAttributes(tuple(columns), is_unseen=True)
        for each in sent:
            numbers = possible_numbers([name for name, _ in each], found, None)
            assert numbers is not None, seed
            assert all(n in numbers[i] for i, (_, n) in enumerate(each)), (seed, each, numbers)


def numbers_of(made: Table, *names: str, since: CatalogHorizon | None = None) -> list[list[int]] | None:
    return possible_numbers(names, TableAttributes(tuple(made.columns)), since)


def test_a_name_reused_by_another_column_does_not_hide_the_first_one() -> None:
    made = table("id", "ssn", "name")
    made.n = 1
    made.set_name(2, "ssn_old")
    made.add("ssn")
    made.set_name(2, None)
    assert numbers_of(made, "id", "ssn_old", "name", "ssn") == [[1], [2], [3], [4]]


def test_what_is_added_is_known_while_no_column_is_dropped() -> None:
    made = table("id", "ssn", "name")
    made.n = 1
    for name in ("a", "b"):
        made.add(name)
    assert numbers_of(made, "id", "ssn", "name") == [[1], [2], [3]]
    assert numbers_of(made, "id", "ssn", "name", "a") == [[1], [2], [3], [4]]


def test_a_new_column_may_be_the_dropped_one_if_both_changed_since() -> None:
    made = table("id", "name", "ssn")
    since = made.horizon()
    made.n = 1
    made.set_name(3, None)
    made.add("x")
    assert numbers_of(made, "id", "name", "x", since=since) == [[1], [2], [3, 4]]
    # a horizon after the change tells them apart
    assert numbers_of(made, "id", "name", "x", since=made.horizon()) == [[1], [2], [4]]


def test_columns_that_did_not_change_keep_their_names() -> None:
    made = table("id", "name", "ssn", "age")
    since = made.horizon()
    made.n = 1
    made.set_name(2, None)
    made.add("phone")
    assert numbers_of(made, "id", "ssn", "age", "phone", since=since) == [[1], [3], [4], [5]]
    assert numbers_of(made, "id", "ssn", "age", "phone") == [[1], [2, 3], [3, 4], [4, 5]]


def test_a_generated_column_and_a_column_list_leave_columns_out() -> None:
    made = table("id", "double", "ssn")
    made.columns[1] = replace(made.columns[1], is_generated=True)
    assert numbers_of(made, "id", "ssn") == [[1], [2, 3]]
    listed = TableAttributes(tuple(table("id", "name", "ssn").columns), lists_changed_by=-1)
    assert possible_numbers(["id", "ssn"], listed, None) == [[1, 2], [2, 3]]
    assert possible_numbers(["id", "ssn"], listed, CatalogHorizon(LSN(1), 99)) == [[1], [3]]
    # a list that was there for a while
    changed = replace(listed, lists_changed_by=50)
    assert possible_numbers(["id", "ssn"], changed, CatalogHorizon(LSN(1), 40)) == [[1], [3]]


def test_nothing_is_known_of_columns_that_were_never_in_the_catalog() -> None:
    made = table("id", "ssn")
    assert numbers_of(made, "id", "ssn", "name") is None
    assert (
        possible_numbers(["id", "ssn"], TableAttributes(tuple(made.columns), is_aborted=True), None) is None
    )


def test_of_many_horizons_the_last_before_a_transaction_is_found() -> None:
    horizons = CatalogHorizons()
    assert horizons.before(LSN(5)) is None
    for n in range(10_000):
        horizons.add(CatalogHorizon(LSN(10 * n), n))
    assert horizons.before(LSN(100_001)) == CatalogHorizon(LSN(99_990), 9_999)
    assert horizons.before(LSN(99_990)) == CatalogHorizon(LSN(99_990), 9_999)
    assert horizons.before(LSN(99_989)) == CatalogHorizon(LSN(99_980), 9_998)
    found = horizons.before(LSN(50_000))
    assert found is not None
    assert found.lsn < 50_000
    assert len(horizons._horizons) <= 512


def test_a_table_with_the_most_columns_is_aligned_at_once() -> None:
    made = table(*(f"c{n}" for n in range(1600)))
    made.n = 1
    made.set_name(800, "new")
    assert numbers_of(made, *(f"c{n}" for n in range(1600))) == [[n + 1] for n in range(1600)]
