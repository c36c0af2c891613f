"""NVIDIA FLARE: kits, processes, jobs. Nothing else in this package imports nvflare, but engines/group_calls.py."""
