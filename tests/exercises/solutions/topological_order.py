def order(graph, result):
    done, found, stack = set(), [], [(result, iter(graph[result]))]
    while stack:
        name, rest = stack[-1]
        for n in rest:
            if n not in done:
                stack.append((n, iter(graph[n])))
                break
        else:
            stack.pop()
            if name not in done:
                done.add(name)
                found.append(name)
    return found


def gradients(graph, slopes, result):
    values = order(graph, result)[::-1]
    g = dict.fromkeys(values, 0.0)
    g[result] = 1.0
    for name in values:
        for n, slope in zip(graph[name], slopes[name], strict=True):
            g[n] += slope * g[name]
    return g
