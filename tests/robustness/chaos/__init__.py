"""The chaos matrix: every command, disturbed in every way; whether it ends, what it leaves, what its next run does."""
