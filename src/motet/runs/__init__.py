"""Runs: recipes, stores, scores, and what makes a run survive being killed."""
