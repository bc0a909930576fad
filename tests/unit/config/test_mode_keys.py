"""The keys of modes: which tables have intermediate versions, and where there are none."""

import pytest

from tests.support.config_texts import load, mistake

HEAD = "pipeline: s\n"


def test_intermediate_versions_are_those_of_tables_in_history() -> None:
    text = (
        "silver: {mode: history, history: {intermediate: true}}\n"
        "tables:\n"
        "  - source: a.b\n"
        "  - {source: a.c, history: {intermediate: false}}\n"
        "  - {source: a.d, mode: mirror}\n"
        "  - {source: a.e, mode: history, history: {intermediate: true}}\n"
    )
    assert [rule.has_intermediate for rule in load(HEAD + text).tables] == [True, False, False, True]
    text = text.replace("history: {intermediate: true}}\ntables", "history: {}}\ntables")
    assert [rule.has_intermediate for rule in load(HEAD + text).tables] == [False, False, False, True]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("tables:\n  - source: a.b\n    history:\n      intermediate: true\n", "5: tables[0]."),
        (
            "silver: {mode: history}\ntables:\n  - source: a.b\n    mode: append\n"
            "    history: {intermediate: false}\n",
            "6: tables[0].",
        ),
        ("silver:\n  history: {intermediate: true}\n", "3: silver."),
    ],
)
def test_only_history_has_intermediate_versions(text: str, place: str) -> None:
    assert mistake(HEAD + text).endswith(
        f"c.yaml:{place}history.intermediate: Only the mode history has versions. Leave the key out, or "
        "write mode: history."
    )
