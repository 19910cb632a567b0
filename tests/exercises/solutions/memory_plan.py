def lifetimes(program, results):
    lives = {}
    for step, (value, reads) in enumerate(program):
        lives[value] = (step, step)
        for r in reads:
            lives[r] = (lives[r][0], step)
    return {v: (first, len(program) - 1 if v in results else last) for v, (first, last) in lives.items()}


def peak(lives, sizes):
    steps = range(max(last for _, last in lives.values()) + 1)
    return max(sum(sizes[v] for v, (first, last) in lives.items() if first <= step <= last) for step in steps)


def plan(lives, sizes):
    placed = {}
    for value in sorted(sizes, key=lambda v: -sizes[v]):
        first, last = lives[value]
        others = [(placed[o], placed[o] + sizes[o]) for o in placed if lives[o][0] <= last and first <= lives[o][1]]
        place = 0
        for begin, end in sorted(others):
            if place + sizes[value] <= begin:
                break
            place = max(place, end)
        placed[value] = place
    return placed
