"""Evidence: one signed file about a run, for those who answer for the data and those who audit it."""
