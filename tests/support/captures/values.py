"""Capture values in both formats from real servers: `python tests/support/captures/values.py 14 18 newest`.

Each major is retrieved once; `newest` is the server that comes with the tests, which has pgvector.
`values-<major>.json` next to this file is replaced: the oid of the type and, in hexadecimal, the binary
value and its text, and what the catalog says of the types that are not built in.
"""

import json
import sys
import tempfile
from dataclasses import astuple
from pathlib import Path

from psycopg import sql

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parents[2]))

from pipeline.postgres.binary_format import read_type  # noqa: E402
from pipeline.postgres.connection import Connection, connect  # noqa: E402
from pipeline.postgres.embedded import start_server  # noqa: E402
from pipeline.protocol.binary.converters import CatalogType, Types  # noqa: E402
from tests.support.captures.typed import install, values_of  # noqa: E402
from tests.support.postgres.binaries import binaries_of  # noqa: E402


def fetch(connection: Connection, query: bytes, result_format: int) -> tuple[int, bytes]:
    """Return the oid of the type and the value that a query gives."""
    result = connection.pgconn.exec_params(query, [], result_format=result_format)
    value = result.get_value(0, 0)
    if value is None:
        raise SystemExit(f"{query.decode()}: {result.error_message.decode()}")
    return result.ftype(0), value


def capture(name: str) -> None:
    """Write what one server sends."""
    facts: dict[int, CatalogType] = {}
    values = []
    with tempfile.TemporaryDirectory() as folder:
        server = start_server(Path(folder), binaries=binaries_of(int(name)) if name.isdigit() else None)
        with connect(server.conninfo) as connection:
            installed = install(connection)
            connection.execute("SET search_path = public")
            version = connection.info.server_version

            def look_up(oid: int) -> CatalogType | None:
                found = read_type(connection, oid)
                if found is not None:
                    facts[oid] = found
                return found

            types = Types(version, look_up)
            for of_type, literals in values_of(version // 10000, installed).items():
                for literal in literals:
                    query = sql.SQL("SELECT {}::{}").format(sql.Literal(literal), sql.SQL(of_type))
                    oid, binary = fetch(connection, query.as_bytes(connection), 1)
                    assert types.find_unreadable(oid) is None, of_type
                    _, text = fetch(connection, query.as_bytes(connection), 0)
                    values.append([oid, binary.hex(), text.hex()])
        server.stop()
    document = {
        "server_version": version,
        "types": [astuple(found) for found in facts.values()],
        "values": values,
    }
    rows = json.dumps(document).replace("], [", "],\n[")
    (HERE / f"values-{name}.json").write_text(rows + "\n")
    print(f"{name}: {len(values)} values, extensions {', '.join(sorted(installed))}")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        capture(argument)
