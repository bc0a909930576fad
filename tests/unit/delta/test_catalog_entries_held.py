"""What an entry of a catalog holds, and the bytes of Thrift by which a Hive metastore is asked for it."""

import json
import socket
import struct
import threading

import pytest

from pipeline.delta.catalogs.entry import HeldColumns, MetastoreEntry, parameters_of, same_path
from pipeline.delta.catalogs.hive import HiveCatalog, HiveFault
from pipeline.delta.catalogs.thrift import ThriftConnection, ThriftError
from pipeline.delta.table_log import Snapshot


def held(kind: object, comment: str | None = None) -> tuple[str, str, str]:
    metadata = {} if comment is None else {"comment": comment}
    column = {"name": "Größe", "type": kind, "nullable": True, "metadata": metadata}
    text = json.dumps({"type": "struct", "fields": [column]})
    return HeldColumns.of(Snapshot("t", schema_string=text)).columns[0]


@pytest.mark.parametrize(
    ("kind", "hive"),
    [
        ("long", "bigint"),
        ("integer", "int"),
        ("decimal(10,2)", "decimal(10,2)"),
        ("timestamp_ntz", "timestamp"),
        ({"type": "array", "elementType": "timestamp_ntz", "containsNull": True}, "array<timestamp>"),
        ({"type": "struct", "fields": [{"name": "a b", "type": "long"}]}, "string"),
        ({"type": "struct", "fields": [{"name": "A", "type": "long"}]}, "struct<a:bigint>"),
        ("variant", "string"),
    ],
)
def test_columns_have_types_of_hive(kind: object, hive: str) -> None:
    assert held(kind) == ("größe", hive, "")


def test_a_comment_is_one_line_of_limited_length() -> None:
    assert held("long", "one\ntwo\x00 \tthree")[2] == "one two three"
    assert held("long", "ö" * 300)[2] == "ö" * 127


def test_one_store_has_one_scheme() -> None:
    assert same_path("s3a://b/lake/t", "s3://b/lake/t/")
    assert not same_path("s3a://b/lake/t", "gs://b/lake/t")


def test_only_external_tables_of_delta_can_be_ours() -> None:
    mark = parameters_of("shop")
    for kind, parameters, is_ours in (
        ("EXTERNAL_TABLE", mark, True),
        ("MANAGED_TABLE", mark, False),
        ("EXTERNAL_TABLE", {"table_type": "ICEBERG"}, False),
        ("VIRTUAL_VIEW", {}, False),
    ):
        assert MetastoreEntry.of(kind, "/t", parameters, HeldColumns()).points_to("/t") is is_ours


def text(value: str) -> bytes:
    return struct.pack(">i", len(value.encode())) + value.encode()


def reply(method: str, result: bytes, kind: int = 2) -> bytes:
    return struct.pack(">I", 0x80010000 | kind) + text(method) + struct.pack(">i", 0) + result


def serve(answer: bytes) -> tuple[int, list[bytes], threading.Thread]:
    """Answer one request on loopback, and return the port and what was asked."""
    server = socket.create_server(("127.0.0.1", 0))
    asked: list[bytes] = []

    def run() -> None:
        connection, _ = server.accept()
        asked.append(connection.recv(65536))
        connection.sendall(answer)
        connection.close()
        server.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return server.getsockname()[1], asked, thread


def test_a_table_is_asked_for_and_read() -> None:
    name = "get_table_objects_by_name_req"
    skewed = b"\x0c" + struct.pack(">h", 11) + b"\x0d" + struct.pack(">hbbi", 3, 15, 11, 1)
    skewed += struct.pack(">bi", 11, 1) + text("x") + text("/x") + b"\0"  # a map whose keys are lists
    storage = b"\x0b" + struct.pack(">h", 2) + text("/lake/t") + skewed + b"\0"
    parameters = b"\x0d" + struct.pack(">hbbi", 9, 11, 11, 2)
    parameters += text("spark.sql.sources.provider") + text("DELTA") + text("pgdelta.pipeline") + text("shop")
    table = b"\x0b" + struct.pack(">h", 1) + text("t") + b"\x0c" + struct.pack(">h", 7) + storage
    table += parameters + b"\x0b" + struct.pack(">h", 12) + text("EXTERNAL_TABLE")
    table += b"\x02" + struct.pack(">h", 14) + b"\x01" + b"\x0a" + struct.pack(">hq", 22, -1) + b"\0"
    tables = b"\x0f" + struct.pack(">hbi", 1, 12, 1) + table + b"\0"
    port, asked, thread = serve(reply(name, b"\x0c" + struct.pack(">h", 0) + tables + b"\0"))
    found = HiveCatalog("shop", f"thrift://127.0.0.1:{port}").entries("public", ["t"])
    thread.join()
    assert found == {"t": MetastoreEntry("/lake/t", True, HeldColumns(), "shop")}
    request = b"\x0b\0\1" + text("public") + b"\x0f\0\2" + struct.pack(">bi", 11, 1) + text("t") + b"\0"
    assert asked == [reply(name, b"\x0c\0\1" + request + b"\0", kind=1)]


def test_an_exception_is_named_without_its_message() -> None:
    fault = b"\x0c\0\1" + b"\x0b\0\1" + text("jdbc://metastore?password=secret") + b"\0\0"
    port, _, thread = serve(reply("drop_table", fault))
    catalog = HiveCatalog("shop", f"thrift://127.0.0.1:{port}")
    with pytest.raises(HiveFault, match=r"^NoSuchObjectException$") as raised:
        catalog.drop_table("public", "t")
    assert catalog.failure(raised.value) == "NoSuchObjectException"
    thread.join()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b"\x80\x01\0\x02\x7f\xff\xff\xff"])
def test_another_protocol_is_refused(answer: bytes) -> None:
    port, _, thread = serve(answer)
    with ThriftConnection("127.0.0.1", port, 10) as connection, pytest.raises(ThriftError):
        connection.call("get_database", "public")
    thread.join()


def test_the_next_address_is_tried() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        unused = closed.getsockname()[1]
    port, _, _ = serve(b"")
    HiveCatalog("shop", f"thrift://127.0.0.1:{unused},thrift://127.0.0.1:{port}").check()
