ELEMENTWISE = ("add", "multiply", "relu", "exp", "subtract")


def readers(program):
    counts = {value: 0 for value, _, _ in program}
    for _, _, reads in program:
        for r in set(reads):
            if r in counts:
                counts[r] += 1
    return counts


def fuse(program, results):
    counts, operations = readers(program), {value: operation for value, operation, _ in program}
    groups, group_of = [], {}
    for value, operation, reads in program:
        first = reads[0] if reads else None
        if (
            operation in ELEMENTWISE
            and operations.get(first) in ELEMENTWISE
            and counts[first] == 1
            and first not in results
        ):
            group_of[value] = group_of[first]
        else:
            group_of[value] = []
            groups.append(group_of[value])
        group_of[value].append(value)
    return groups


def traffic(program, groups, sizes):
    reads_of = {value: reads for value, _, reads in program}
    total = 0
    for group in groups:
        needed = {r for value in group for r in reads_of[value]} - set(group)
        total += sum(sizes[r] for r in needed) + sizes[group[-1]]
    return total
