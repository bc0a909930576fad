"""The parts of `make growth`: each yields the rows of its table as they are measured."""

from collections.abc import Callable, Iterator

from tools.growth.measure import Growth, Row
from tools.growth.parts.table import measure_table

PARTS: dict[str, Callable[[Growth], Iterator[Row]]] = {"table": measure_table}
