import math


def staircase(step, rate, factor, every):
    return rate * factor ** (step // every)


def cosine(step, peak, total):
    return peak * (1 + math.cos(math.pi * min(step / total, 1))) / 2


def warmup_cosine(step, peak, warmup, total):
    if step < warmup:
        return peak * step / warmup
    return cosine(step - warmup, peak, total - warmup)
