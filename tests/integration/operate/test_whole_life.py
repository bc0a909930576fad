"""A short life of a lake by each writer: what `make spark-matrix` runs with each release of Spark."""

import pytest

from pipeline.silver.write.writer_choice import WriterSetting
from tests.support.pipelines import BOTH_WRITERS, MakePipeline, with_writer
from tests.support.whole_life import live

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("writer", BOTH_WRITERS)
def test_a_lake_lives(make_pipeline: MakePipeline, writer: WriterSetting) -> None:
    live(with_writer(make_pipeline(copy="initial", create_publication="all"), writer))
