"""What runs found, for people: tables, figures and one HTML page. Reads stores only."""
