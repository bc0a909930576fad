"""The apply job: what bronze holds into silver."""
