"""What fedmix costs: one local step against the plain PyTorch loop, and how a round grows with
everything that can grow.
"""
