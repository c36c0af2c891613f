"""A site's side of a federation: it answers letters from its own rows, within its owner's policy."""
