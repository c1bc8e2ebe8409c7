"""How work is cut for a GPU, as numbers that both the operators' shapes and their kernels follow."""

MANY = 64  # channels from which transposed copies pay in the gradient of the filters
BLOCK, SUMMED = 64, 512  # pixels of a program that copies (and sums on the way), and of one that only sums
PROGRAMS = 528  # that fill the chip: four for each of an H200's multiprocessors
CLIENTS = 12  # as if so many ran; with the real number a client's rounding would depend on who else runs


def parts(pixels: int, outputs: int, channels: int, taps: int) -> int:
    """Into how many shares the pixels are cut whose products sum to the gradient of the filters."""
    if channels < MANY:
        programs = -(-outputs // 32) * -(-channels * taps // 128)
    else:
        programs = -(-outputs // 128) * -(-channels // 128) * taps
    return max(1, min(pixels // 256, 17, PROGRAMS // (CLIENTS * programs)))


def bias_parts(pixels: int, channels: int) -> int:
    """Of how many sums the gradient of a bias is made."""
    return -(-pixels // (SUMMED if channels < MANY else BLOCK))
