def attainable(intensity, peak, bandwidth):
    return min(peak, intensity * bandwidth)


def bound(flops, size, peak, bandwidth):
    return "memory" if size / bandwidth > flops / peak else "arithmetic"


def step_time(operations, peak, bandwidth, launch):
    return sum(max(flops / peak, size / bandwidth) + launch for flops, size in operations)


def speedup(operations, peak, bandwidth, launch, saved):
    flops, size = (sum(column) for column in zip(*operations, strict=True))
    one = step_time([(flops, size - saved)], peak, bandwidth, launch)
    return step_time(operations, peak, bandwidth, launch) / one
