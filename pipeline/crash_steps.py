"""Named steps of work whose order survives a crash.

Data, what is recorded of it and acknowledgements are written in an order in which a run that ends between
any two of them loses nothing and repeats nothing. Each of these writes is a step with a name; the fault tests
end, fail or delay runs before and after every step by these names.
"""

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class NamedStep(enum.Enum):
    """A step with a name."""


class CrashStep(NamedStep):
    """Every step of the jobs, in the order of the data's way."""

    SEAL_CHANGES = "changes are sealed"
    MOVE_FILE = "a file is moved"
    RECORD_RELATIONS = "relations are recorded"
    COMMIT_BRONZE = "bronze is committed"
    ACKNOWLEDGE = "the slot is acknowledged"
    STAGE_COPIED_ROWS = "copied rows are staged"
    RECORD_COPY = "a copy is recorded"
    RECORD_CATALOG = "the state of the catalog is recorded"
    EVOLVE_COLUMNS = "columns evolve"
    REGISTER_TABLE = "a table is registered"
    WRITE_TABLE = "a table is written"
    SWAP_TABLE = "a table is swapped"
    RECORD_MANIFEST = "a manifest is recorded"


class ForgetStep(NamedStep):
    """Every step of `pgdelta forget`, in order."""

    RECORD_INTENT = "the keys to erase are recorded"
    ERASE_RECORDS = "rows of the pipeline's own tables are erased"
    ERASE_BRONZE = "rows of bronze are erased"
    END_HISTORY = "the history of a table is ended"
    RECORD_RECEIPT = "the receipt is recorded"
    REMOVE_INTENT = "the keys to erase are removed"


class AdoptionStep(NamedStep):
    """The step of `pgdelta adopt` that is not one of the jobs."""

    REQUEST_ADOPTION = "an adoption is requested"


class RetentionStep(NamedStep):
    """Every step by which `pgdelta maintain` compacts bronze, in order."""

    RECORD_BASES = "bases are recorded"
    RECORD_COPIES = "what is left of copies is recorded"
    COMPACT_CHANGES = "changes are compacted"


class RebuildStep(NamedStep):
    """The step of `pgdelta rebuild --into` that can end early."""

    PUBLISH_TABLE = "a built table is published"


def _ignore(step: NamedStep, moment: str) -> None:
    pass


observer: Callable[[NamedStep, str], None] = _ignore
"""Called with each step before and after it (`before`, `after`); tests put theirs in its place."""


@contextmanager
def crash_step(step: NamedStep) -> Iterator[None]:
    """Run a step; an exception in it means that it may or may not have happened."""
    observer(step, "before")
    yield
    observer(step, "after")
