"""Keep the tables of a lake in order while jobs run, and by command."""
