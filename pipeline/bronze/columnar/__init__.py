"""The vectorised decoder: messages of pgoutput, and copied rows, to columns of Arrow.

`decode_rows` takes a batch of Insert, Update and Delete messages as bytes and returns `RowColumns`. No Python
object is made per row or cell; every step is a numpy operation over all rows or all cells at once:

1. `decode` joins the messages to one buffer and finds, column by column, the kind, start and length of every
   cell (`Tuples`). Each length is checked against the end of its message.
2. `binary` replaces cells in binary format, per column and type, by PostgreSQL's text. Values of rare types
   are converted one by one with `protocol/binary`.
3. `protected_values` hashes and masks cells, and leaves some out.
4. `tuples` copies the cells once, into the buffers of Arrow lists of strings. Tuples that are not UTF-8 also
   keep their raw bytes, and the numbers of cells with unchanged TOAST are listed.

A batch with a malformed message is given to the scalar decoder (`protocol/decode`), which names the message,
field and offset; a test holds that the two agree. `decode_copied` is the last two steps for the rows of a
table copy.
"""
