"""Changes of the fault matrix."""

from tests.support.pipelines import Pipeline

KEPT = 2  # tables that came with the last cells


def change(pipeline: Pipeline, number: int) -> None:
    """Change rows, columns and tables of the source."""
    low = number * 20
    if number:
        pipeline.run(f"ALTER TABLE keyed DROP c{number - 1}")
    pipeline.run(
        f"INSERT INTO keyed (id, v) SELECT i, 'v' || i FROM generate_series({low}, {low + 29}) i "
        "ON CONFLICT (id) DO UPDATE SET v = 'again'",
        f"ALTER TABLE keyed ADD c{number} int DEFAULT {number}",
        f"UPDATE keyed SET id = id + 100000 WHERE id = {low + 3}",
        f"INSERT INTO bag SELECT i % 3, 'v' FROM generate_series(1, {number + 5}) i",
        "DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)",
        f"CREATE TABLE came{number} (id int PRIMARY KEY, v text)",
        f"INSERT INTO came{number} SELECT i, 'v' FROM generate_series(1, 50) i",
    )
    pipeline.transact(
        f"DELETE FROM keyed WHERE id = {low + 5}",
        f"UPDATE keyed SET c{number} = NULL WHERE id = {low + 6}",
        f"UPDATE came{number} SET v = 'w' WHERE id < 10",
    )
    if number > KEPT:
        pipeline.run(f"DROP TABLE came{number - KEPT - 1}")
