"""Exercise: the gradient of a convolution with regard to its filters.

Given dy, the gradient of the loss with regard to the result y of the exercise `convolution`, what is the gradient dw
with regard to w? Each filter element w[i, j, c, f] meets x at all positions; write down the sum that y is and collect
what is multiplied by it.

It runs on the arrays of NumPy, PyTorch, JAX and others: take functions of `xp`
(https://data-apis.org/array-api/latest).

The library's own: minicnn/ops/convolution.py. Grade this file by: minicnn grade convolution_gradient FILE
"""


def conv2d_weight_gradient(dy, x, *, kernel, strides, padding, xp):
    """Gradient of the loss with regard to the filters.

    Args:
        dy: Gradient with regard to y (N, OH, OW, F).
        x: Images (N, H, W, C).
        kernel: (KH, KW).
        strides: (SH, SW).
        padding: ((top, bottom), (left, right)), zeros around the image.
        xp: Namespace of the arrays.

    Returns:
        dw (KH, KW, C, F), with the dtype of x.
    """
    raise NotImplementedError  # the blank
