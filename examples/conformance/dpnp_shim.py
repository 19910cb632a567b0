"""The way out of dpnp: `minicnn conformance dpnp --shim dpnp_shim.py`. On a CPU it needs intel-opencl-rt."""


def to_numpy(array):
    """The array as one of NumPy."""
    return array.asnumpy()
