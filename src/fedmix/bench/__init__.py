"""Benchmarks: a local step against the plain PyTorch loop, and how the cost of a round grows."""
