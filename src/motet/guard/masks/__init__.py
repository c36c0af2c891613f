"""Secure aggregation: the server learns the sum of masked replies, and no single one."""
