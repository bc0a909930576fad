"""Configurations of texts, and the sentences about mistakes in them."""

import pytest

from pipeline.config.config import Config
from pipeline.config.load import load_text
from pipeline.errors import ConfigError


def load(text: str, **environ: str) -> Config:
    """Return the configuration of a text, read as the file c.yaml."""
    return load_text(text, "c.yaml", environ)


def mistake(text: str, **environ: str) -> str:
    """Return the sentence of the error that a text is."""
    with pytest.raises(ConfigError) as caught:
        load(text, **environ)
    assert caught.value.exit_code == 2
    assert "geheim" not in str(caught.value)  # the secret of the texts
    return str(caught.value)
