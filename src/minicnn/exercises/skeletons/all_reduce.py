"""Exercise: all-reduce as a tree.

Ranks add up their gradients and all need the sum. Sums of floating-point numbers depend on their order: so that any
number of processes gets the same bits, the order is a fixed tree over the parts. In each round neighbours are added,

    [p0, p1, p2, p3, p4]
    [p0 + p1, p2 + p3, p4]
    [(p0 + p1) + (p2 + p3), p4]
    [((p0 + p1) + (p2 + p3)) + p4]

and one without a neighbour goes on as it is. Grade this file by: minicnn grade all_reduce FILE
"""


def tree_sum(parts):
    """Add arrays of float32 in the order of the tree, to the bit.

    Example:
        >>> tree_sum([np.float32([1]), np.float32([2]), np.float32([4])])
        array([7.], dtype=float32)
    """
    raise NotImplementedError  # the blank


def schedule(ranks):
    """Messages of the ranks while the tree is added up.

    A sum is kept by the rank of its left part, so rank 0 has the whole sum at last.

    Returns:
        For each round a list of pairs (sender, receiver).

    Example:
        >>> schedule(5)
        [[(1, 0), (3, 2)], [(2, 0)], [(4, 0)]]
    """
    raise NotImplementedError  # another blank


def bytes_sent(ranks, size):
    """Bytes that all ranks together send, if the sum of `size` bytes then goes back along the tree to all.

    Example:
        >>> bytes_sent(5, 100)
        800
    """
    raise NotImplementedError  # another blank
