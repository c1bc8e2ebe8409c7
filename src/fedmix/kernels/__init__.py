"""Fast forms of layers for many clients at once, each with a plain PyTorch twin that tests compare
it with.
"""
