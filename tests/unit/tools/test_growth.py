"""What `make growth` makes of its rows, and the lake that it fills."""

import xml.etree.ElementTree as ElementTree
from contextlib import closing
from pathlib import Path

import pytest

from pipeline.apply.applier import Applier
from tests.support.pipelines import succeeded
from tools.growth.lake import GrowingLake, config_of
from tools.growth.measure import Cost, Growth, Row, measured
from tools.growth.plot import plot


def rows(*cpu: float, is_law: bool = True) -> list[Row]:
    return [Row("native", 10**n, 1, 1, Cost(cpu=cost), is_law) for n, cost in enumerate(cpu, 6)]


@pytest.mark.parametrize(
    ("found", "is_ok"),
    [
        (rows(0.1, 0.5, 0.13), True),
        (rows(0.1, 0.1, 0.14), False),
        (rows(0.1, 0.9, is_law=False), None),
        (rows(0.1), None),
    ],
)
def test_the_largest_table_costs_at_most_a_third_more_than_the_smallest(
    found: list[Row], is_ok: bool | None, tmp_path: Path
) -> None:
    growth = Growth(tmp_path, 1, 1, ["native"], print, found[::-1])
    [verdict] = growth.verdicts()
    assert verdict.is_ok is is_ok
    assert verdict.ratio == pytest.approx(found[-1].cost.cpu / found[0].cost.cpu)


def test_rows_fit_a_terminal() -> None:
    row = Row("native, random UUIDs", 10**8, 105, 11.7, Cost(99.999, 199.99, 9000 << 20, 900 << 20), True)
    assert len(row.line()) == len(Growth.heading()) == 80


def test_the_plot_has_a_point_for_each_row() -> None:
    image = ElementTree.fromstring(plot([*rows(0.05, 0.5, 5), *rows(0, is_law=False)]))
    assert len(image.findall("{*}circle")) == 4
    description = image.findtext("{*}desc")
    assert description is not None
    assert "native, 1,000,000 rows: 0.05 s." in description


def test_a_block_s_time_and_bytes_are_measured(tmp_path: Path) -> None:
    with measured() as cost:
        (tmp_path / "file").write_bytes(bytes(100_000))
        (tmp_path / "file").read_bytes()
    assert 100_000 <= cost.written <= 200_000
    assert 100_000 <= cost.read <= 200_000
    assert cost.seconds > 0


@pytest.mark.parametrize("has_uuids", [False, True])
def test_batches_change_a_filled_table_by_the_native_writer(tmp_path: Path, has_uuids: bool) -> None:
    lake = GrowingLake(tmp_path / "lake", 5000, has_uuids=has_uuids)
    assert lake.table.row_count() == 5000
    with closing(Applier(None, config_of(lake, "native"))) as applier:
        lake.land_batch("newest")
        succeeded(applier.apply_pending())
    found = lake.table.rows().to_pylist()
    assert len(found) == 5000 - 2 + 8
    assert sum(row["name"] == "added" for row in found) == 8
    assert sum(row["name"].startswith("changed") for row in found) == 10
