"""Typical mistakes: of each exercise what is replaced in the solution, the tasks that it loses, and what is said."""

from __future__ import annotations

MISTAKES: dict[str, list[tuple[str, str, str, str]]] = {
    "scalar_autodiff": [
        ("parent.gradient += slope", "parent.gradient = slope", "used twice", "keeps the last contribution only"),
        ("((self, other.data), (other, self.data))", "((self, self.data), (other, other.data))",
         "multiplication, functions, used twice", "should be"),
        ("float(self.data > 0)", "1.0", "functions, used twice", "should be"),
    ],
    "topological_order": [
        ("done, found, stack = set()", "done, found, stack = set(graph['result'] if 'result' in graph else ())",
         "order", "should be a list of the"),
        ("values = order(graph, result)[::-1]", "values = order(graph, result)", "gradients", "should be"),
    ],
    "broadcasting": [
        ("tuple(range(extra)) + stretched", "tuple(range(extra))", "sum, addition, multiplication", ""),
        ("dy.sum(axis", "dy.mean(axis", "sum, addition, multiplication", "averaged, and should be added up"),
        ("sum_to(dy * b, a.shape), sum_to(dy * a, b.shape)", "sum_to(dy * a, a.shape), sum_to(dy * b, b.shape)",
         "multiplication", "the factors are exchanged"),
    ],
    "gradient_check": [
        ("(f(x + step) - f(x - step)) / (2 * h)", "(f(x + step) - f(x)) / h", "differences, check", ""),
        ("max(np.abs(a).max(), np.abs(b).max())", "1", "relative error", "should be"),
        ("< 1e-6", "< 1e-2", "check", "should be"),
    ],
    "im2col": [
        ("h * step[0], w * step[1], h, w, c", "h, w, h * step[0], w * step[1], c", "view, im2col", "should be"),
        ("itemsize *= n", "itemsize += n", "strides", "should be"),
        ("windows.reshape(", "windows.transpose(0, 1, 2, 5, 3, 4).reshape(", "im2col", "the order of c, i, j"),
    ],
    "dense": [
        ("xp.matmul(x, w) + b", "xp.matmul(x, w)", "dense", "the bias is missing"),
        ("xp.sum(dy, axis=0)", "xp.mean(dy, axis=0)", "dense gradient", "db is a mean over the batch"),
        ("where(x > 0, dy", "where(x >= 0, dy", "ReLU gradient", "at 0 the gradient is 0"),
        ("dx = xp.matmul(dy, xp.permute_dims(w, (1, 0)))", "dx = xp.matmul(w, xp.permute_dims(dy, (1, 0)))",
         "dense gradient", "its axes are swapped"),
    ],
    "dropout": [
        ("x / (1 - rate)", "x", "dropout", "not divided by 1 - rate"),
        (">= rate", "< rate", "mask", "what is dropped"),
        ("mix(np.uint64(step) ^ mix(seed))", "mix(seed)", "mask", "should be"),
        ("return dropout(dy, rate, seed, step)", "return dy", "gradient", "is a view"),
    ],
    "momentum": [
        ("p - rate * g\n\n", "p + rate * g\n\n", "plain", "goes up the gradient"),
        ("    return p + v, v", "    p += v\n    return p, v", "momentum", "is a view"),
        ("p + momentum * v - rate * g, v", "p + v, v", "Nesterov", "the step of plain momentum"),
    ],
    "adam": [
        ("m / (1 - beta_1**t), v / (1 - beta_2**t)", "m, v", "first step, later steps, decay", "not corrected"),
        ("(v_hat**0.5 + epsilon)", "(v_hat + epsilon) ** 0.5", "first step, later steps, decay", "under the root"),
        ("(p, m, v, g, rate, t, beta_1, beta_2, epsilon)\n    return new - rate * decay * p",
         "(p, m, v, g + decay * p, rate, t, beta_1, beta_2, epsilon)\n    return new", "decay", "as in L2"),
    ],
    "schedule": [
        ("min(step / total, 1)", "step / total", "cosine, warm-up", "it rises again"),
        ("cosine(step - warmup, peak, total - warmup)", "cosine(step, peak, total)", "warm-up", "begins at step 0"),
        ("step // every", "step / every", "staircase", "should be"),
    ],
    "training_loop": [
        ("for batch in batches(order, size):", "for batch in batches(order, size)[: len(order) // size]:", "last batch",
         "should be"),
        ("total += loss * len(batch)", "total += loss * size", "last batch", "should be"),
        ("w = w - rate * g", "w -= rate * g", "fit, last batch", "changes an argument"),
        ("range(0, len(order), size)", "range(0, len(order) - size + 1, size)", "batches, last batch", ""),
    ],
    "overfit": [
        (" * (hidden > 0)", "", "gradients", "ReLU's gradient is left out"),
        ("p = p / len(x)", "p = p * 1", "gradients", "you did not divide by"),
        ("range(1, 301)", "range(1, 2)", "loss below 0.5, loss below 0.01", "with these weights the loss is"),
    ],
    "find_the_bug": [
        ("dy.sum(axis=0)", "dy.mean(axis=0)", "dense", "should be"),
        ("[rng.permutation(n) for _ in range(epochs)]", "[rng.integers(0, n, n) for _ in range(epochs)]", "epochs",
         "once"),
    ],
    "counting": [
        ("2 * n * oh * ow", "n * oh * ow", "convolution", "are two operations"),
        ("(3 if i else 2)", "3", "training", "the first layer needs no gradient"),
        ("2 * n * d * f, 4", "2 * n * d * f, 8", "dense", "should be"),
    ],
    "memory_plan": [
        ("(lives[r][0], step)", "(lives[r][0], step - 1)", "lifetimes", "should be"),
        ("first <= lives[o][1]", "first < lives[o][1]", "plan", "overlap in memory"),
        ("key=lambda v: -sizes[v]", "key=lambda v: sizes[v]", "small plan", "places large values first"),
    ],
    "fusion": [
        ("            and counts[first] == 1\n            and first not in results\n", "", "groups",
         "stays in a register"),
        ("set(reads)", "reads", "readers, groups", "should be"),
        ("- set(group)", "- set()", "traffic", "should be"),
    ],
    "roofline": [
        ("max(flops / peak, size / bandwidth) + launch", "flops / peak + size / bandwidth + launch", "step, fusion",
         "the longer counts, not the sum"),
        ("min(peak, intensity * bandwidth)", "intensity * bandwidth", "roof", "should be"),
        ("size - saved", "size + saved", "fusion", "should be"),
    ],
    "all_reduce": [
        ("    while len(parts) > 1:\n", "    return sum(parts[1:], parts[0])\n    while len(parts) > 1:\n", "sum",
         "from left to right"),
        ("(b, a) for", "(a, b) for", "schedule", "should be"),
        ("2 * (ranks - 1)", "(ranks - 1)", "bytes", "should be"),
    ],
    "grad_cam": [
        ("np.maximum((weight * activation).sum(axis=3), 0)", "(weight * activation).sum(axis=3)", "map", "not cut off"),
        ("gradient.mean(axis=(1, 2), keepdims=True)", "gradient", "map", "not averaged"),
        ("rows / (height * width)", "rows", "gradient", "times what"),
        ("np.where(largest > 0, largest, 1)", "largest", "map", "infinities or NaN"),
    ],
    "reduction_kernel": [
        ("    cuda.syncthreads()\n    half", "    half", "whole blocks, any length, tree", "a race: one thread"),
        ("        if t < half:\n            part[t] += part[t + half]\n        cuda.syncthreads()",
         "        if t < half:\n            part[t] += part[t + half]\n            cuda.syncthreads()",
         "whole blocks, any length, tree", "come to a barrier, others do not"),
        ("x[i] if i < x.shape[0] else 0", "x[i]", "any length", "is outside axis 0 of argument 1"),
    ],
    "softmax_kernel": [
        ("    cuda.syncthreads()\n    total = 0.0\n    for k", "    total = 0.0\n    for k",
         "values, any width, large logits, reads", "a race"),
        ("math.exp(row[k] - largest)", "math.exp(row[k])", "large logits", ""),
        ("math.exp(row[k] - largest)", "math.exp(x[n, k] - largest)", "reads", "keep the row in shared memory"),
    ],
    "convolution_kernel": [
        ("    cuda.syncthreads()\n", "", "whole tiles, edges, reads", "a race"),
        ("tile[i + p, j + q] * w", "x[top + i + p, left + j + q] * w", "reads", "the tile and its halo once a block"),
        ("* w[p, q]", "* w[2 - p, 2 - q]", "whole tiles, edges, reads", "should be"),
    ],
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
