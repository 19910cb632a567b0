import numpy as np


def mix(counters):
    """32 random bits for each counter below 2^32, as uint64 (complete)."""
    x = np.asarray(counters, "uint64") & np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = x ^ (x >> np.uint64(shift))
        x = (x * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    return x ^ (x >> np.uint64(16))


def mask(shape, rate, seed, step):
    places = np.arange(int(np.prod(shape)), dtype="uint64")
    bits = mix(places ^ mix(np.uint64(step) ^ mix(seed)))
    return (bits / 2**32 >= rate).reshape(shape)


def dropout(x, rate, seed, step):
    return np.where(mask(x.shape, rate, seed, step), x / (1 - rate), 0)


def dropout_gradient(dy, rate, seed, step):
    return dropout(dy, rate, seed, step)
