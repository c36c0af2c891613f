"""What is learned and by whom: data sets, how their rows are dealt to clients, and networks."""
