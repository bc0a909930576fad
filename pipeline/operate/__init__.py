"""What an operator asks for: both jobs at once, a plan, a retry, a resync, silver as of a commit."""
