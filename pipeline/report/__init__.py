"""What runs, tables and the source's slot report to people, schedulers and machines."""
