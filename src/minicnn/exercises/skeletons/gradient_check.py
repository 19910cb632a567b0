"""Exercise: a gradient checker.

Whether a gradient is right can be seen without deriving it: move one number a little, and see how the loss changes.

    slope of f at x in the direction of element i  ~  (f(x + h e_i) - f(x - h e_i)) / (2 h)

The error of this central difference is about h^2 times the third derivative, and rounding adds about 1e-16 / h: with
h = 1e-5 both are about 1e-10. Two gradients agree if their difference is small compared with their size.

The loss is one of LOSSES; leave these as they are. Grade this file by: minicnn grade gradient_check FILE
"""

import numpy as np

LOSSES = {
    "squares": lambda x: float(np.sum(x**2)),
    "sines": lambda x: float(np.sum(np.sin(x) * np.cumsum(x))),
    "softmax": lambda x: float(np.log(np.sum(np.exp(x))) - x.flat[0]),
}


def numeric_gradient(loss, x, h=1e-5):
    """Gradient by central differences.

    Args:
        loss: A name in LOSSES.
        x: float64 of any shape.
        h: Step.

    Returns:
        An array of the shape of x.

    Example:
        >>> numeric_gradient("squares", np.array([1.0, -3.0]), h=0.5)
        array([ 2., -6.])
    """
    raise NotImplementedError  # the blank


def relative_error(a, b):
    """max |a - b| / max(max |a|, max |b|), and 0.0 if both are zero.

    Example:
        >>> relative_error(np.array([1.0, 2.0]), np.array([1.0, 2.5]))
        0.2
    """
    raise NotImplementedError  # another blank


def check(loss, x, claims):
    """Verdict on each of some claimed gradients: true within a relative error of 1e-6.

    Args:
        loss: A name in LOSSES.
        x: float64 of any shape.
        claims: A list of arrays of the shape of x.

    Returns:
        A list of booleans.

    Example:
        >>> check("squares", np.array([1.0, -3.0]), [np.array([2.0, -6.0]), np.array([2.0, -6.001])])
        [True, False]
    """
    raise NotImplementedError  # another blank
