"""A subject that was erased is in no object of the bucket any more; old versions of objects are reported."""

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.config.tables import TableRule
from pipeline.crash_steps import ForgetStep
from pipeline.forget.forget import run_forget
from pipeline.forget.receipt import ForgetReceipt
from pipeline.verify.audit import run_audit
from tests.support.fault_points import crash_at
from tests.support.files import places_of
from tests.support.pages import render
from tests.support.pipelines import Crash
from tests.support.stores.lakes import StorePipeline
from tests.support.stores.s3 import BUCKET, S3Server

SECRET = "xyzzySubject"
VERSIONING = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"


def forget(pipeline: StorePipeline, key: str) -> ForgetReceipt:
    pipeline.lose_machine()
    return run_forget(pipeline.config, "public.person", [(key,)])


def places(pipeline: StorePipeline, folder: Path) -> list[str]:
    """Return the names of the objects that have the word."""
    folder.mkdir()
    for each in pipeline.store.list():
        path = folder / each.name
        path.parent.mkdir(parents=True, exist_ok=True)
        pipeline.store.download(each.name, path)
    return places_of(folder, SECRET)


def assert_whole(pipeline: StorePipeline) -> None:
    assert run_audit(pipeline.config).findings == ()
    assert_equal(pipeline)


def assert_equal(pipeline: StorePipeline) -> None:
    pipeline.lose_machine()
    for table in ("person", "other"):
        pipeline.assert_equal(table, "id", "name")


@pytest.fixture
def lived(store_pipeline: StorePipeline) -> StorePipeline:
    """Give a pipeline whose source has deleted a subject that left traces in all places."""
    pipeline = store_pipeline
    rules = (TableRule("public.person", types={"odd": "INT"}), TableRule("public.*"))
    pipeline.config = replace(pipeline.config, tables=rules)
    pipeline.catch_up(
        "CREATE TABLE person (id text PRIMARY KEY, name text, odd text)",
        "CREATE TABLE other (id int PRIMARY KEY, name text)",
        "INSERT INTO other VALUES (1, 'one')",
        f"INSERT INTO person VALUES ('{SECRET}1', '{SECRET}Name', '{SECRET}Odd'), ('kept', 'kept', 'k')",
    )
    pipeline.catch_up(
        f"UPDATE person SET name = '{SECRET}Second' WHERE id = '{SECRET}1'",
        f"UPDATE person SET id = '{SECRET}2' WHERE id = '{SECRET}1'",
        "UPDATE person SET name = 'new' WHERE id = 'kept'",
    )
    pipeline.catch_up(f"DELETE FROM person WHERE id = '{SECRET}2'", "UPDATE other SET name = 'two'")
    return pipeline


@pytest.mark.promise("erasure")
def test_nothing_of_the_subject_remains(lived: StorePipeline, s3: S3Server, tmp_path: Path) -> None:
    before = places(lived, tmp_path / "before")
    for place in ("bronze/changes", "silver/public/person", "_pgdelta/misfits"):
        assert any(path.startswith(place) for path in before), place
    receipt = forget(lived, f"{SECRET}2")
    assert places(lived, tmp_path / "after") == []
    rows = {place.place: place.rows for place in receipt.places}
    assert rows["bronze/changes"] == 4
    assert (receipt.keys, receipt.keeps_versions) == (2, False)
    assert all(place.files_removed for place in receipt.places if place.rows)
    assert_whole(lived)
    lived.catch_up("INSERT INTO person VALUES ('newer', 'newer', '3')", "UPDATE person SET odd = '4'")
    assert_equal(lived)
    assert places(lived, tmp_path / "later") == []
    lived.catch_up("DELETE FROM person WHERE id = 'newer'")
    assert_old_versions_are_in_the_receipt(lived, s3, "newer")


def assert_old_versions_are_in_the_receipt(lived: StorePipeline, s3: S3Server, key: str) -> None:
    s3.request("PUT", f"{BUCKET}?versioning", VERSIONING)
    try:
        receipt = forget(lived, key)
    finally:
        s3.request("PUT", f"{BUCKET}?versioning", VERSIONING.replace(b"Enabled", b"Suspended"))
    assert receipt.as_json()["store_keeps_versions"] is True
    assert "the bucket keeps removed objects as older versions" in render(receipt.print, 200)


@pytest.mark.promise("erasure")
@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", list(ForgetStep))
def test_a_run_that_crashes_is_ended_by_the_next(
    lived: StorePipeline, step: ForgetStep, when: str, tmp_path: Path
) -> None:
    with crash_at(step, when), pytest.raises(Crash):
        forget(lived, f"{SECRET}2")
    assert_whole(lived)
    forget(lived, f"{SECRET}2")  # on another machine
    assert places(lived, tmp_path / "after") == []
    assert not any(each.name.startswith("_pgdelta/forget") for each in lived.store.list())
    assert_whole(lived)
