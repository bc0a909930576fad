"""Erase one subject from the whole lake: from bronze, silver, the pipeline's own tables and the history."""
