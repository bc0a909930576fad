"""The pipeline fixtures, for the tests of this folder."""

from tests.operate.pipelines import make_pipeline as make_pipeline
from tests.operate.pipelines import pipeline as pipeline
