"""Built-in data sets: one file each, found by its name; its function `load` returns a Pool."""
