"""Block sizes for a GPU, shared by the operators' output shapes and their kernels."""

MANY = 64  # channels from which transposed copies make the gradient of the filters faster
BLOCK, SUMMED = 64, 512  # pixels of a program that copies (and sums), and of one that only sums
PROGRAMS, FEW_PROGRAMS = 300, 500  # that fill an H200: large ones (many channels), small ones (few)
CLIENTS = 12  # assumed; with the true number, a client's rounding would depend on the others


def parts(pixels: int, outputs: int, channels: int, taps: int) -> int:
    """Number of parts into which the sum over pixels, for the filters' gradient, is split."""
    if channels < MANY:
        wanted, programs = FEW_PROGRAMS, -(-outputs // 32) * -(-channels * taps // 128)
    else:
        wanted, programs = PROGRAMS, -(-outputs // 128) * -(-channels // 128) * taps
    return max(1, min(pixels // 256, 17, -(-wanted // (CLIENTS * programs))))


def copied(channels: int, itemsize: int) -> bool:
    """Whether the filters' gradient uses transposed copies; factors of 16 bits need none."""
    return channels >= MANY and itemsize > 2


def bias_parts(pixels: int, channels: int, itemsize: int) -> int:
    """Number of partial sums of the gradient of a bias."""
    return -(-pixels // (BLOCK if copied(channels, itemsize) else SUMMED))
