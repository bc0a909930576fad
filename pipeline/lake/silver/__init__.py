"""Silver as Delta tables: making, evolving, writing and replacing them, and reading them as of a commit."""
