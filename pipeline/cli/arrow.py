"""Start Arrow in a command with little memory, and without pandas, whose import takes long."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Sequence
from types import ModuleType

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_TRIM_BYTES = 1 << 20
_REUSED_BYTES = 32 << 20
_ARENAS, _ARENAS_FOR_REUSE = 2, 4


class _WithoutPandas:
    """Refuses the import of pandas."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def use_lean_arrow(*, reuses_blocks: bool = False) -> None:
    """Return memory to the system at once, and do not import pandas to see if values are of its types.

    A process that `reuses_blocks` allocates the same sizes again and again: it keeps some tens of MiB of what
    it frees, since the system clears each page that it gives. pyarrow looks for pandas when it first converts
    Python values; `to_pandas` imports it all the same.
    """
    if "pandas" in sys.modules or "pyarrow" in sys.modules:
        return
    # Arrow's default keeps what it frees, and the C library loses memory between many small arrays. jemalloc
    # is in the wheels for x86-64, and is chosen when pyarrow is loaded: `set_memory_pool` is not for what
    # computes and reads Parquet. By default it has four arenas a core, and each keeps for a while what is
    # freed in it.
    has_jemalloc = sys.platform == "linux" and os.uname().machine == "x86_64"
    if has_jemalloc:
        os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "jemalloc")
        arenas = _ARENAS_FOR_REUSE if reuses_blocks else _ARENAS
        os.environ.setdefault("JE_ARROW_MALLOC_CONF", f"narenas:{arenas}")
    import pyarrow as pa

    _limit_freed_memory(reuses_blocks=reuses_blocks)
    if not has_jemalloc:
        pa.set_memory_pool(pa.system_memory_pool())
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        for values in ([], [1]):  # two places of pyarrow look for it
            pa.array(values)
    finally:
        sys.meta_path.remove(finder)


def _limit_freed_memory(*, reuses_blocks: bool) -> None:
    """Let the C library keep little of what is freed.

    With each large block that is freed, glibc would keep more, up to 64 MiB in each arena.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is None:  # other C libraries have none
        return
    if reuses_blocks:
        mallopt(_M_MMAP_THRESHOLD, _REUSED_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _REUSED_BYTES if reuses_blocks else _TRIM_BYTES)
