"""Messages of a slot before one's eyes, without a lake."""
