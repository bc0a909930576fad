"""Rules for columns: what they mean, and what contradicts itself is refused with file, line and key."""

from pathlib import Path

import pytest

from pipeline.config.config import Config
from pipeline.config.load import load_config
from pipeline.errors import ConfigError

KEY = "0123456789 secret key"
RULE = "tables:\n  - source: public.t\n    columns:\n"


def load(folder: Path, text: str, key: str | None = KEY) -> Config:
    file = folder / "c.yaml"
    file.write_text(f"pipeline: shop\n{text}", encoding="utf-8")
    return load_config(file, {"KEY": key} if key is not None else {})


def test_rules_are_read_with_their_places(tmp_path: Path) -> None:
    text = (
        'source: {hash_key: "${KEY}"}\n'
        f"{RULE}      exclude: [a, b]\n"
        "      hash: {c: hmac-sha256}\n"
        "      mask: {d: last4, e: null, f: '***'}\n"
    )
    config = load(tmp_path, text)
    rules = config.tables[0].columns
    assert (rules.exclude, rules.hash, rules.mask) == (
        ("a", "b"),
        {"c": "hmac-sha256"},
        {"d": "last4", "e": None, "f": "***"},
    )
    assert rules.names == ("a", "b", "c", "d", "e", "f")
    assert config.source.hash_key == KEY
    assert KEY not in repr(config)
    place = f"{tmp_path}/c.yaml:8: tables[0].columns.mask.e: "
    assert rules.key_fault("e", "t").startswith(f"{place}Column e is masked")
    assert rules.key_fault("b", "t").startswith(f"{tmp_path}/c.yaml:6: tables[0].columns.exclude[1]: ")


def test_include_leaves_all_others_out(tmp_path: Path) -> None:
    rules = load(tmp_path, f"{RULE}      include: [a]\n").tables[0].columns
    assert not rules.excludes("a")
    assert rules.excludes("later")
    assert not load(tmp_path, "").tables[0].columns


@pytest.mark.promise("mistakes in the file")
@pytest.mark.parametrize(
    ("text", "place", "sentence"),
    [
        ("source: {hash_key: plain text of a key}\n", "2: source.hash_key", "The file contains the key."),
        ("source: {hash_key: '${KEY:-plain text of a key}'}\n", "2: source.hash_key", "The file contains"),
        ("source: {hash_key: 'x${KEY}'}\n", "2: source.hash_key", "The file contains the key."),
        (
            f"{RULE}      hash: {{a: hmac-sha256}}\n",
            "5: tables[0].columns.hash.a",
            "source.hash_key is",
        ),
        (f"{RULE}      hash: {{a: md5}}\n", "5: tables[0].columns.hash.a", "Unknown value."),
        (f"{RULE}      include: []\n", "5: tables[0].columns.include", "No column would be captured."),
        (
            f"{RULE}      include: [a]\n      exclude: [b]\n",
            "6: tables[0].columns.exclude",
            "include and",
        ),
        (
            f"{RULE}      include: [a]\n      mask: {{b: x}}\n",
            "6: tables[0].columns.mask.b",
            "The column is",
        ),
        (
            f"{RULE}      exclude: [b]\n      mask: {{b: x}}\n",
            "6: tables[0].columns.mask.b",
            "The column is",
        ),
        (f"{RULE}      mask: {{b: 5}}\n", "5: tables[0].columns.mask.b", "Expected text, found a number."),
        (f"{RULE}      mask: {{b: }}\n", "5: tables[0].columns.mask.b", "Expected text, found nothing."),
        (f"{RULE}      masks: {{b: x}}\n", "5: tables[0].columns.masks", "Unknown key."),
        (
            f"{RULE}      mask: {{b: x}}\n    types: {{b: INT}}\n",
            "5: tables[0].columns.mask.b",
            "The column is STRING",
        ),
        (
            f"source: {{hash_key: '${{KEY}}'}}\n{RULE}      hash: {{a: hmac-sha256}}\n      mask: {{a: x}}\n",
            "7: tables[0].columns.mask.a",
            "The column is hashed too.",
        ),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, place: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path}/c.yaml:{place}: {sentence}")


@pytest.mark.parametrize("key", [None, "", "fifteen letters"])
def test_a_missing_or_short_key_is_refused_and_not_repeated(tmp_path: Path, key: str | None) -> None:
    with pytest.raises(ConfigError, match=r"c.yaml:2: source.hash_key: ") as raised:
        load(tmp_path, 'source: {hash_key: "${KEY}"}\n', key)
    assert "fifteen" not in str(raised.value)
