"""Handwritten digits on Flower, with PyTorch."""
