"""Comments on the source's tables and columns arrive while both jobs run, by both writers."""

import pytest
from deltalake import DeltaTable

from pipeline.apply.applier import Applier
from pipeline.silver.write.writer_choice import WriterSetting
from tests.support.pipelines import BOTH_WRITERS, MakePipeline, with_writer
from tests.support.running import continuous
from tests.support.threads import wait_until

pytestmark = pytest.mark.spark


@pytest.mark.promise("comments")
@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_a_comment_arrives_while_the_jobs_run(
    make_pipeline: MakePipeline, monkeypatch: pytest.MonkeyPatch, writer: WriterSetting
) -> None:
    pipeline = with_writer(make_pipeline("public.*", copy="initial"), writer)
    pipeline.run("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'a')")
    pipeline.catch_up("COMMENT ON TABLE t IS 'the table'", "COMMENT ON COLUMN t.id IS 'the key'")
    applier = Applier(pipeline.spark, pipeline.config)
    applier.run_continuously()
    applier.apply_pending()
    monkeypatch.setattr("pipeline.apply.applier.RETRY_SECONDS", 0.1)
    with continuous(pipeline):
        pipeline.run("COMMENT ON COLUMN t.v IS 'set meanwhile'")

        def is_set() -> bool:
            applier.retry_when_due()
            fields = DeltaTable(str(pipeline.path("silver", "public", "t"))).schema().fields
            return {f.name: f.metadata.get("comment") for f in fields}["v"] == "set meanwhile"

        wait_until(is_set)
    applier.close()
    pipeline.assert_equal("t")
