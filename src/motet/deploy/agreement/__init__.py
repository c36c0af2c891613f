"""What sites agree on before anything is trained: the schema of their tables and a common layout."""
