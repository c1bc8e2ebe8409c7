"""Time to recover one client's mean from a secure sum over two, with Flower's own masks.

    python benchmarks/secagg_masks.py

Two clients run Flower's SecAgg+ unchanged. The server keeps what it is sent: each client's masked
vector, and the seeds of the masks that clients draw alone, which it is given at the end. A client
is then hidden by the mask of the pair only, drawn by numpy's RandomState from a key that is folded
to four characters: 2^28 seeds. The first number under it is a weight, and known.
"""

import time
from typing import Any

import numpy as np
from flwr.common.secure_aggregation.crypto.symmetric_encryption import generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import factor_combine
from flwr.common.secure_aggregation.quantization import dequantize, quantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import generate_key_pairs

QUANTA, MODULUS, BOUND = 1 << 22, 1 << 32, 4.0
AT_ONCE = 1 << 15
Array = np.ndarray[Any, Any]


def first_words(seeds: Array) -> Array:
    """The first output of MT19937 (Matsumoto and Nishimura 1998) for many seeds at once.

    It needs words 0, 1 and 397 of the state.
    """
    state = seeds.astype(np.uint32)
    words = {0: state}
    for i in range(1, 398):
        state = np.uint32(1812433253) * (state ^ (state >> np.uint32(30))) + np.uint32(i)
        if i in (1, 397):
            words[i] = state
    y = (words[0] & np.uint32(0x80000000)) | (words[1] & np.uint32(0x7FFFFFFF))
    y = (
        words[397]
        ^ (y >> np.uint32(1))
        ^ np.where(y & np.uint32(1), np.uint32(0x9908B0DF), np.uint32(0))
    )
    y ^= y >> np.uint32(11)
    y ^= (y << np.uint32(7)) & np.uint32(0x9D2C5680)
    y ^= (y << np.uint32(15)) & np.uint32(0xEFC60000)
    return np.asarray(y ^ (y >> np.uint32(18)))


def seeds_from(start: int) -> Array:
    """The next `AT_ONCE` seeds from number `start`, of those whose four bytes are characters."""
    n = np.arange(start, start + AT_ONCE, dtype=np.uint32)
    return sum(((n >> np.uint32(7 * i)) & np.uint32(127)) << np.uint32(8 * i) for i in range(4))


def main() -> None:
    """Mask a vector as a client does, and recover it."""
    secret = np.random.default_rng(1).uniform(0, 1, 64)
    one, other = generate_key_pairs(), generate_key_pairs()
    key = generate_shared_key(one[0], other[1])
    plain = factor_combine(QUANTA, quantize([secret], BOUND, QUANTA))
    sent = [
        (a + b) % MODULUS
        for a, b in zip(plain, pseudo_rand_gen(key, MODULUS, [(1,), (64,)]), strict=True)
    ]

    began = time.perf_counter()
    wanted = np.uint32((int(sent[0][0]) - QUANTA) % MODULUS)  # the mask on the weight
    for start in range(0, 1 << 28, AT_ONCE):
        seeds = seeds_from(start)
        for seed in seeds[first_words(seeds) == wanted].tolist():
            mask = pseudo_rand_gen(int(seed).to_bytes(4, "little"), MODULUS, [(1,), (64,)])
            guess = (sent[1] - mask[1]) % MODULUS
            if guess.max() < QUANTA:
                error = np.abs(dequantize([guess], BOUND, QUANTA)[0] - secret).max()
                tried = (start + AT_ONCE) / 2**28
                print(
                    f"found after {time.perf_counter() - began:.0f} s and {tried:.0%} of the "
                    f"seeds; error {error:.1e}"
                )
                return
    print("not found")


if __name__ == "__main__":
    main()
