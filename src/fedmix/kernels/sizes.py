"""Block sizes for a GPU, shared by the operators' output shapes and their kernels."""

MANY = 64  # channels from which transposed copies pay in the gradient of the filters
BLOCK, SUMMED = (
    64,
    512,
)  # pixels of a program that copies (and sums on the way), and of one that only sums
PROGRAMS, FEW_PROGRAMS = (
    300,
    500,
)  # that fill an H200: larger ones with many channels, smaller ones with few
CLIENTS = (
    12  # as if so many ran; with the real number a client's rounding would depend on who else runs
)


def parts(pixels: int, outputs: int, channels: int, taps: int) -> int:
    """Into how many shares the pixels are cut whose products sum to the gradient of the filters."""
    if channels < MANY:
        wanted, programs = FEW_PROGRAMS, -(-outputs // 32) * -(-channels * taps // 128)
    else:
        wanted, programs = PROGRAMS, -(-outputs // 128) * -(-channels // 128) * taps
    return max(1, min(pixels // 256, 17, -(-wanted // (CLIENTS * programs))))


def copied(channels: int, itemsize: int) -> bool:
    """Whether the gradient of the filters is a product of transposed copies, which factors of 16
    bits never need.
    """
    return channels >= MANY and itemsize > 2


def bias_parts(pixels: int, channels: int, itemsize: int) -> int:
    """Of how many sums the gradient of a bias is made."""
    return -(-pixels // (BLOCK if copied(channels, itemsize) else SUMMED))
