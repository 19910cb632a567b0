def tree_sum(parts):
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0].copy()


def schedule(ranks):
    holders, rounds = list(range(ranks)), []
    while len(holders) > 1:
        rounds.append([(b, a) for a, b in zip(holders[::2], holders[1::2], strict=False)])
        holders = holders[::2]
    return rounds


def bytes_sent(ranks, size):
    return 2 * (ranks - 1) * size
