"""Random lives of a source, as programs of SQL: made from a seed alone, run by both jobs, and judged.

`programs.make_program` draws steps from the table `KINDS`, without a server; `living.Living` runs a program
and both jobs, and judges silver after each settled state. A program prints as the steps to repeat.
"""
