"""The Delta tables under `_pgdelta`: what pgdelta records of its silver tables, for itself and for analysts.

A module has the name of its table, and the class of its rows: but `registry` has `tables`, and `Records`, the
facade of what jobs record; `source_comments` has `comments`. `waiting` is the group commit of threads. The
tables `requests` and `erasures` are bronze's.
"""
