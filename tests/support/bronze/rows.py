"""The rows of bronze's tables in a folder, as another reader of Delta sees them."""

from typing import Any

from deltalake import DeltaTable

from pipeline.config.config import Config


def bronze_rows(config: Config, table: str, *columns: str) -> list[dict[str, Any]]:
    """Return the rows of a table of bronze, with some of its columns or all."""
    found = DeltaTable(f"{config.storage.root}/bronze/{table}")
    return list(found.to_pyarrow_table(columns=list(columns) or None).to_pylist())
