"""The parts of `make bench`: each is a function that gives figures of `tools.bench.limits`."""

from collections.abc import Callable, Iterator

from tools.bench.limits import Measured
from tools.bench.parts.apply import measure_apply
from tools.bench.parts.commands import measure_commands
from tools.bench.parts.copy import measure_copy
from tools.bench.parts.demo import measure_demo
from tools.bench.parts.latency import measure_latency
from tools.bench.parts.live import measure_live
from tools.bench.parts.mixed import measure_mixed
from tools.bench.parts.modes import measure_modes
from tools.bench.parts.one_table import measure_one_table
from tools.bench.parts.prove import measure_proof
from tools.bench.parts.start import measure_start
from tools.bench.parts.sustained import measure_sustained
from tools.bench.parts.tables import measure_tables
from tools.bench.rig import Rig

PARTS: dict[str, Callable[[Rig], Iterator[Measured]]] = {
    "start": measure_start,
    "commands": measure_commands,
    "tables": measure_tables,
    "latency": measure_latency,
    "live": measure_live,
    "mixed": measure_mixed,
    "sustained": measure_sustained,
    "apply": measure_apply,
    "one_table": measure_one_table,
    "copy": measure_copy,
    "prove": measure_proof,
    "demo": measure_demo,
    "modes": measure_modes,
}
