"""Real federations: organisations on their own machines."""
