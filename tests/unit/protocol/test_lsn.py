"""LSN: an integer with PostgreSQL's text form."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import ProtocolError
from pipeline.protocol.lsn import INVALID, LSN


@pytest.mark.parametrize(
    ("text", "value"),
    [("0/0", 0), ("16/B374D848", 0x16B374D848), ("FFFFFFFF/FFFFFFFF", 2**64 - 1), ("0/a", 10), ("00/0A", 10)],
)
def test_text_form_is_that_of_pg_lsn(text: str, value: int) -> None:
    assert LSN.parse(text) == value


def test_text_is_written_in_capitals_without_padding() -> None:
    assert str(LSN(0x16B374D848)) == f"{LSN(0x16B374D848)}" == "16/B374D848"
    assert repr(LSN(10)) == "LSN('0/A')"
    assert str(INVALID) == "0/0"


@given(st.integers(0, 2**64 - 1))
def test_text_and_value_round_trip(value: int) -> None:
    assert LSN.parse(str(LSN(value))) == value


def test_lsns_sort_as_numbers_where_their_text_does_not() -> None:
    assert LSN.parse("0/9") < LSN.parse("0/10") < LSN.parse("9/0") < LSN.parse("10/0")


def test_json_holds_the_integer() -> None:
    assert json.dumps(LSN(10)) == "10"


@pytest.mark.parametrize(
    "text", ["", "1", "/", "1/", "/1", "0/G", "0/0 ", "0/123456789", "-1/0", "0x1/0", "0/0\n"]
)
def test_text_that_is_no_lsn_is_refused(text: str) -> None:
    with pytest.raises(ProtocolError, match="is not an LSN"):
        LSN.parse(text)
