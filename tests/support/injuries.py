"""Rows of silver, damaged on purpose."""

from tests.support.pipelines import Pipeline


def injure(pipeline: Pipeline, table: str, statement: str) -> None:
    """Change rows of silver as a fault of ours would; {} is the table."""
    key = "spark.databricks.delta.commitInfo.userMetadata"
    session = pipeline.session.newSession()
    session.conf.set(key, '{"pgdelta": 1}')
    session.sql(statement.format(f"delta.`{pipeline.root}/silver/public/{table}`"))
