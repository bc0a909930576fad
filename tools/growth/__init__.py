"""What a batch costs as something else grows."""
