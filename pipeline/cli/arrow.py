"""Start Arrow in a command without pandas, which takes longer to import than most commands run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _WithoutPandas(MetaPathFinder):
    """Refuses the import of pandas."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def use_arrow_without_pandas() -> None:
    """Let pyarrow not import pandas to see whether values are of its types; `to_pandas` still does.

    pyarrow looks for pandas once, when it first converts Python values.
    """
    if "pandas" in sys.modules or "pyarrow" in sys.modules:
        return
    import pyarrow as pa

    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([], pa.null())
    finally:
        sys.meta_path.remove(finder)
