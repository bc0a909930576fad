"""Aged logs read as a year of commits leaves them, and a short year stays flat."""

from contextlib import closing
from pathlib import Path

import pytest

from pipeline.apply.applier import Applier
from pipeline.delta.table_log import TableLog
from tools.growth.parts.logs import apply_all, land, make_lake
from tools.growth.parts.year import Twelfth, growth_of, measure_year


@pytest.mark.costly
@pytest.mark.parametrize(
    ("scale", "is_kept"), [pytest.param(0.02, True, marks=pytest.mark.slow), (0.004, False)]
)
def test_jobs_continue_in_a_lake_with_aged_logs(tmp_path: Path, scale: float, is_kept: bool) -> None:
    lake = make_lake(tmp_path, scale, is_aged=True, is_kept=is_kept)
    changes = lake.bronze.changes
    log = changes.folder / "_delta_log"
    assert changes.version() == 300_000 * scale
    commits = len(list(log.glob("*.json")))
    if is_kept:
        assert 2000 <= commits <= 3100
        assert len(list(log.iterdir())) < 6000
    else:
        assert commits == changes.version() + 1
        assert changes.snapshot().file_count > commits - 12
    silver = lake.lake.table("silver", *lake.names[0])
    assert silver.version() == 50_000 * scale
    before = silver.row_count()
    with closing(Applier(None, lake.config)) as applier:
        land(lake)
        apply_all(applier)
    TableLog.forget(silver.path)
    assert silver.version() > 50_000 * scale
    assert silver.row_count() == before


@pytest.mark.costly
@pytest.mark.slow
def test_a_short_year_of_commits_is_maintained(tmp_path: Path) -> None:
    found = list(measure_year(360, tmp_path))
    assert [each.commits for each in found] == list(range(30, 361, 30))
    assert found[-1].data_files < 360
    assert all(each.bytes > 0 and each.cpu > 0 for each in found)


@pytest.mark.parametrize(("files", "ratio"), [(100, 1.0), (300, 3.0)])
def test_growth_is_that_of_the_last_third(files: int, ratio: float) -> None:
    steady = [Twelfth(n, 100, 100, 1000, 0.1, 0.1) for n in range(8)]
    last = [Twelfth(n, 100, files, 1000, 0.1, 0.1) for n in range(4)]
    assert growth_of([*steady, *last]) == pytest.approx(ratio)
