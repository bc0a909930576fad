"""Compare tables after a gap or for an adoption."""

from collections.abc import Mapping
from functools import cached_property

from pipeline.bronze.adoptions import Adoption
from pipeline.bronze.copy_states import CopyHistory
from pipeline.bronze.log import Bronze
from pipeline.config.config import Config
from pipeline.postgres.snapshot.export import SnapshotKeeper
from pipeline.protocol.lsn import LSN
from pipeline.table_copy.adopted_rows import AdoptedRows
from pipeline.table_copy.gap_verdicts import GapVerdict, TableComparer
from pipeline.table_name import TableName


class LazyComparer:
    """Imports what compares tables when it is needed: an ingest without a gap does not load it."""

    def __init__(self, config: Config, bronze: Bronze) -> None:
        self._config = config
        self._bronze = bronze

    def waiting(self, names: Mapping[TableName, LSN | None], history: CopyHistory) -> Mapping[TableName, str]:
        """Return the tables that cannot be compared yet, each with a sentence."""
        return self._comparer.waiting(names, history)

    def compare(
        self, keeper: SnapshotKeeper, names: Mapping[TableName, LSN | None], history: CopyHistory
    ) -> Mapping[TableName, GapVerdict]:
        """Return the verdict on each table under the keeper's snapshot."""
        return self._comparer.compare(keeper, names, history)

    def adopt(
        self, keeper: SnapshotKeeper, name: TableName, adoption: Adoption
    ) -> tuple[str, AdoptedRows | None]:
        """Return what a comparison with a Delta table found, and its rows that are equal to the source."""
        return self._comparer.adopt(keeper, name, adoption)

    @cached_property
    def _comparer(self) -> TableComparer:
        from pipeline.silver.compare.gap_comparison import GapComparer

        return GapComparer(self._config, self._bronze)
