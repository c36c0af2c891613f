"""Files of data sets: where they come from, how they are checked, and how they are kept once decoded."""
