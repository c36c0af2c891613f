"""Looking back at a run: what each client contributed to it, and what attackers could learn from it."""
