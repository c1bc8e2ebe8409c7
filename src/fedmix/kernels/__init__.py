"""Fast layers for many clients at once; tests compare each with its plain PyTorch version."""
