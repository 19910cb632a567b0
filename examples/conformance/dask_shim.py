"""What array-api-compat's dask.array leaves to others, for `minicnn conformance array_api_compat.dask.array`."""

import dask


def force(arrays):
    """Arrays that are computed."""
    return list(dask.persist(*arrays, scheduler="synchronous"))


def to_numpy(array):
    """The array as one of NumPy."""
    return array.compute(scheduler="synchronous")
