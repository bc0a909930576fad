"""One file a command: its options, its help, and the function that it calls.

What a command needs is imported when it runs, so that `--help` answers at once.
"""
