"""What two or more methods share. Knows vec and local; does not know methods or engines."""
