"""What a pipeline would meet at the source, looked at beforehand without changing anything."""
