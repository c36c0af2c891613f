"""The server's side of a federation: one job of a run, the chain of jobs, and its files."""
