"""NVIDIA FLARE: kits, processes, jobs. Nothing else in this package imports nvflare, but engines/flare.py."""
