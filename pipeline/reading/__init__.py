"""What analysts read without a job: silver live, as of a commit, by one SELECT, and the life of a row."""
