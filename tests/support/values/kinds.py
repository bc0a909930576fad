"""A type under test: its values as literals, the silver type of the contract, and what silver cannot hold.

Arrays are derived: of each type one whose elements are all its values, with NULLs, empty, of two and three
dimensions and with bounds of their own. An element that does not fit is NULL in its place.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LONGEST_ELEMENT = 3000
LONGEST_KEY = 60


@dataclass(frozen=True, slots=True)
class Cell:
    """A literal; silver holds its value unless it is `lost`, or all of it but some elements."""

    literal: str
    lost: bool = False
    lost_items: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Kind:
    """A type as SQL writes it, its silver type as Spark's `simpleString`, and its cells."""

    type: str
    silver: str
    cells: tuple[Cell, ...]
    delimiter: str = ","

    @property
    def is_array(self) -> bool:
        return self.silver.startswith("array<")

    @property
    def fitting(self) -> list[str]:
        return [cell.literal for cell in self.cells if not cell.lost and not cell.lost_items]


def kind(
    type_: str, silver: str, values: Iterable[str], misfits: Iterable[str] = (), *, delimiter: str = ","
) -> Kind:
    """Return a type with the values that fit and those that do not, each once."""
    cells = [*map(Cell, dict.fromkeys(values)), *(Cell(text, lost=True) for text in dict.fromkeys(misfits))]
    return Kind(type_, silver, tuple(cells), delimiter)


def array_of(element: Kind) -> Kind:
    """Return the array of a type, with cells made of its cells."""
    delimiter = element.delimiter
    values = [value for value in element.fitting if len(value) <= LONGEST_ELEMENT]
    lost = [cell.literal for cell in element.cells if cell.lost]
    first, last = values[0], values[-1]
    fitting = [
        literal([], delimiter),
        literal([None], delimiter),
        literal([None, first, None, None, last], delimiter),
        "[1:2]=" + literal([first, last], delimiter),
        literal([value for value in values if len(value) <= LONGEST_KEY] * 2, delimiter),
        *(literal([*values[at : at + 5], None], delimiter) for at in range(0, len(values), 5)),
    ]
    pair = literal([first, None], delimiter)
    whole = [
        "[0:1]=" + literal([first, last], delimiter),
        "[-2:-2]=" + literal([last], delimiter),
        f"{{{pair}{delimiter}{literal([last, last], delimiter)}}}",
        f"[5:6][-1:0]={{{pair}{delimiter}{pair}}}",
        f"{{{{{pair}}}{delimiter}{{{pair}}}}}",
    ]
    partly = [Cell(literal([first, text, None, last], delimiter), lost_items=frozenset({1})) for text in lost]
    if lost:
        partly.append(Cell(literal(lost, delimiter), lost_items=frozenset(range(len(lost)))))
    cells = (
        *map(Cell, dict.fromkeys(fitting)),
        *partly,
        *(Cell(text, lost=True) for text in whole),
    )
    return Kind(f"{element.type}[]", f"array<{element.silver}>", cells, delimiter)


def literal(items: Sequence[str | None], delimiter: str = ",") -> str:
    """Return an array literal of one dimension, every element but NULL quoted."""
    quoted = (
        "NULL" if item is None else '"' + item.replace("\\", "\\\\").replace('"', '\\"') + '"'
        for item in items
    )
    return "{" + delimiter.join(quoted) + "}"
