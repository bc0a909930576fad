"""A lake may have any name that a folder can have, also one that Spark would take for a pattern."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.apply.applier import Applier
from pipeline.config.config import Storage
from pipeline.config.load import load_config
from pipeline.report.status import read_status
from tests.support.pipelines import MakePipeline

pytestmark = pytest.mark.spark

# All at once: what is a pattern of other names, and what is none that there can be.
NAMES = (
    "[a]",
    "{b}",
    "*",
    "?",
    "\\",
    "[",
    "]",
    "{",
    "}",
    ",",
    "%",
    "%20",
    ":",
    "#",
    " ",
    "'é\"`&;=+~!@|<>()",
)


@pytest.mark.slow
def test_what_comes_to_a_lake_of_any_name_is_applied(make_pipeline: MakePipeline, tmp_path: Path) -> None:
    pipeline = make_pipeline(copy="initial")
    root = str(tmp_path / "".join(NAMES))
    file = tmp_path / "c.yaml"
    quoted = root.replace("'", "''")
    file.write_text(f"pipeline: s\nstorage: {{root: '{quoted}'}}\n")
    storage = load_config(file, {}).storage
    assert storage == Storage(root)
    pipeline.config = replace(pipeline.config, storage=storage)
    pipeline.run(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 20) i",
    )
    applier = Applier(pipeline.spark, pipeline.config)
    for count in range(2):
        pipeline.ingest()
        applier.apply_pending()  # the second time it reads the files that came since the first
        assert applier.summary.exit_code(strict=True) == 0, applier.summary.lines()
        pipeline.assert_equal("t")
        pipeline.run(f"UPDATE t SET v = v || {count} WHERE id % 2 = {count % 2}")
    pipeline.assert_follows("t")
    [table] = read_status(pipeline.config).tables
    assert (table.name, pipeline.path("silver", "public", "t").is_dir()) == (("public", "t"), True)
