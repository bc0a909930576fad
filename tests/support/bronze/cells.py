"""Row messages with cells in binary format, decoded as bronze does."""

import struct
from collections.abc import Sequence

import numpy as np

from pipeline.bronze.columnar.binary import RowTypes
from pipeline.bronze.columnar.decode import RowColumns, decode_rows
from pipeline.protocol.binary.converters import Types
from pipeline.protocol.messages import Cell, Column, Delete, Insert, Relation, Update
from tests.support.protocol.encode import encode


def relation(*oids: int, name: str = "t") -> Relation:
    return Relation(
        7, "public", name, "f", tuple(Column(True, f"c{i}", oid, -1) for i, oid in enumerate(oids))
    )


def decode(
    messages: Sequence[Insert | Update | Delete],
    relations: Sequence[Relation],
    of_row: Sequence[int],
    types: Types | None,
    xid: int | None = None,
) -> RowColumns:
    widths = np.array([len(relations[index].columns) for index in of_row], np.int64)
    row_types = RowTypes(np.array(of_row, np.int32), [(described, types) for described in relations])
    data = [encode(message) for message in messages]
    if xid is not None:
        data = [message[:1] + struct.pack(">I", xid) + message[1:] for message in data]
    return decode_rows(
        data, widths, lambda row: f"number {row}", in_stream=xid is not None, row_types=row_types
    )


def read_column(oid: int, values: Sequence[Cell], types: Types | None = None) -> list[str | None]:
    messages = [Insert(7, (value,)) for value in values]
    types = types or Types(180000)
    columns = decode(messages, [relation(oid)], [0] * len(messages), types)
    return [new[0] for new in columns.new.to_pylist()]
