"""One short file per method, found by its file's name."""
