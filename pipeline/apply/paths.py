"""Where silver tables must not lie."""

from pipeline.config import Config
from pipeline.errors import LakeError
from pipeline.rules import TableName


def refuse_path(config: Config, name: TableName) -> None:
    """Refuse a table whose folder would lie in another's, where VACUUM would take its files away."""
    rule = config.rule_for(*name)
    if rule and rule.target is None and any(name[0] == other.target for other in config.tables):
        raise LakeError(
            f"{'.'.join(name)} would lie in the folder of the silver table {name[0]}, which is another "
            "table's target: give one of them another target"
        )
