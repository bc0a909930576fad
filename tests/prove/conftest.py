"""The pipeline fixtures, for the tests."""

from tests.operate.pipelines import make_pipeline as make_pipeline
from tests.operate.pipelines import pipeline as pipeline
