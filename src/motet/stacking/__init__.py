"""Stacking: stack.py combines a private model with models of others; estimators and contributions on top of it.

Knows rows, models and their owners. Does not know engines, rounds or how models are sent.
"""
