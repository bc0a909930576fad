"""The pipeline fixtures, for the tests of this folder."""

from tests.operate.lives import life as life
from tests.operate.pipelines import make_pipeline as make_pipeline
from tests.operate.pipelines import pipeline as pipeline
