"""Exercise: Grad-CAM, where a network looks.

The last convolution makes C maps of an image. How much a class depends on a map says the gradient of its score with
regard to it, averaged over the map; the maps, weighted in this way and added up, are a picture of where the class was
seen. What speaks against the class is cut off at zero.

    weight[n, c] = mean over h, w of gradient[n, h, w, c]
    map[n, h, w] = max(sum over c of weight[n, c] * activation[n, h, w, c], 0)

Grade this file by: minicnn grade grad_cam FILE
"""


def grad_cam(activation, gradient):
    """The map of each image, divided by its largest element; zeros where that is 0.

    Args:
        activation: Result of the convolution (N, H, W, C).
        gradient: That of the score with regard to it (N, H, W, C).

    Returns:
        (N, H, W), from 0 to 1.

    Example:
        >>> grad_cam(np.array([[[[1.0, 0.0], [4.0, 8.0]]]]), np.array([[[[2.0, 0.0], [0.0, 1.0]]]]))
        array([[[0.125, 1.   ]]])
    """
    raise NotImplementedError  # the blank


def score_gradient(labels, weights, height, width):
    """Gradient of the score of a label, after global average pooling and a dense layer.

    score[n] = sum over c of (mean over h, w of activation[n, h, w, c]) * weights[c, labels[n]]

    Args:
        labels: Integers (N,).
        weights: Those of the dense layer (C, K).
        height: H.
        width: W.

    Returns:
        (N, H, W, C)

    Example:
        >>> score_gradient(np.array([1]), np.array([[0.0, 8.0]]), 2, 2)
        array([[[[2.],
                 [2.]],
        <BLANKLINE>
                [[2.],
                 [2.]]]])
    """
    raise NotImplementedError  # another blank


def enlarge(maps, factor):
    """Each element of the maps (N, H, W) as a square of factor x factor.

    Example:
        >>> enlarge(np.array([[[1.0, 2.0]]]), 2)
        array([[[1., 1., 2., 2.],
                [1., 1., 2., 2.]]])
    """
    raise NotImplementedError  # another blank
