"""The vectorised decoder: messages of pgoutput, and copied rows, to columns of Arrow.

`decode_rows` takes a batch of Insert, Update and Delete messages as bytes and returns `RowColumns`. No Python
object is made per row or cell; every step is a numpy operation over all rows or all cells at once:

1. `decode.py` joins the messages to one buffer and finds, column after column, the kind, start and length of
   every cell (`Tuples`). Each length is checked against the end of its message.
2. `binary.py` replaces cells in binary format, per column and type, by PostgreSQL's text: `binary_types.py`
   has the types that most columns have; any other value goes through `protocol/binary` one by one.
3. `tuples.py` copies the cells once, into the buffers of Arrow lists of strings. Tuples that are not UTF-8
keep their raw bytes too; cells that were not sent (unchanged TOAST) are listed by position.

Whatever is malformed is given to the scalar decoder (`protocol/decode.py`), which names message, field and
offset; a test holds that the two agree. `decode_copied` does step 3 for rows that a table copy has read.
"""

from pipeline.bronze.columnar.binary import RowTypes
from pipeline.bronze.columnar.decode import RowColumns, decode_rows
from pipeline.bronze.columnar.tuples import decode_copied

__all__ = ["RowColumns", "RowTypes", "decode_copied", "decode_rows"]
