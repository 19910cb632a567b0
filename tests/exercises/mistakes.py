"""Typical mistakes: of each exercise what is replaced in the solution, the tasks that it loses, and what is said."""

from __future__ import annotations

MISTAKES: dict[str, list[tuple[str, str, str, str]]] = {
    "cross_entropy": [
        ("shifted = logits - xp.max(logits, axis=-1, keepdims=True)", "shifted = logits", "large logits", "infinities"),
        ("(p - xp.astype", "(p + 0 * xp.astype", "gradient", "the 1 at each label is not subtracted"),
    ],
    "convolution": [
        ("xp.reshape(w, (", "xp.reshape(w[::-1, ::-1], (", "plain, strides, padding", "the filters are flipped"),
        ("before, after\n", "after, before\n", "padding", "before and after are exchanged in the padding"),
        ("    sh, sw = strides\n", "    sw, sh = strides\n", "strides, padding", ""),
    ],
    "convolution_gradient": [
        ("xp.matmul(tap, positions)", "xp.matmul(tap, positions) / n", "filters", "as if divided by the batch"),
        ("i : i + ", "0 : 0 + ", "filters", ""),
        ("w[i, j, :, :]", "w[-1 - i, -1 - j, :, :]", "images, images, strides", ""),
    ],
    "pooling": [
        ("free = xp.logical_and(free, xp.logical_not(hit))", "pass", "ties", "of equal elements all get the gradient"),
        ("dx = dx + spread", "dx = dx * 0 + spread", "gradient, ties", ""),
    ],
    "normalization": [
        ("(g - xp.mean(g, axis=axes, keepdims=True) - u", "(g - 0 * u", "gradient", "are no constants"),
        ("xp.sum(dy, axis=axes)", "xp.mean(dy, axis=axes)", "gradient", "as if divided by"),
        ("* scale + offset", "* scale", "forward", "is missing from each"),
    ],
    "bias_relu": [
        ("max(x[n, c] + bias[c], 0)", "max(x[n, c], 0) + bias[c]", "values, any shape, one pass", "should be"),
        ("max(x[n, c] + bias[c], 0)", "max(x[n, c] + bias[c], x[n, c] * 0)", "one pass", "are read from memory"),
        ("range(x.shape[1])", "range(x.shape[1] + 1)", "values, any shape, one pass", "is outside axis 1"),
    ],
    "blocked_matmul": [
        ("BLOCK = 8", "BLOCK = 32", "cache", "lines are brought into the cache"),
        ("min(k0 + BLOCK, a.shape[1])", "k0 + BLOCK", "values", "is outside axis 1"),
    ],
    "matmul_kernel": [
        ("        cuda.syncthreads()\n        for", "        for", "whole tiles, edges, reads", "a race: one thread"),
        ("if row < a.shape[0] and first + x < a.shape[1] else 0", "", "edges", "outside"),
        ("    if row < c.shape[0] and column < c.shape[1]:\n", "    if True:\n", "edges", "outside"),
    ],
}  # fmt: skip
