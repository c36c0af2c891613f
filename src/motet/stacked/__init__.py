"""Stacking for one organisation: estimators that take fetched models, and the paper's procedure, fast."""
