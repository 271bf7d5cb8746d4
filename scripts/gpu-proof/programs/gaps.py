"""Tells from what `gaps` wrote how a device went over from one process to another.

    gaps.py FILE [FILE]

The files are of programs that ran at the same time. What overlaps at a handover was sliced by the hardware: there the
gap is less than nothing.
"""

import array
import sys

# Nanoseconds at the beginning and at the end that do not count.
SETTLE, REST = 500_000_000, 100_000_000


def kernels(path):
    numbers = array.array("Q")
    with open(path, "rb") as file:
        numbers.frombytes(file.read())
    return list(zip(numbers[::2], numbers[1::2]))


def percentile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def main(paths):
    each = [kernels(path) for path in paths]
    begin = max(one[0][0] for one in each) + SETTLE
    end = min(one[-1][1] for one in each) - REST
    both = sorted((b, e, who) for who, one in enumerate(each) for b, e in one if begin <= b and e <= end)
    seconds = (end - begin) / 1e9
    handovers, within = [], []
    for (_, ended, who), (begun, _, other) in zip(both, both[1:]):
        (within if who == other else handovers).append((begun - ended) / 1e3)
    rates = [sum(who == number for _, _, who in both) / seconds for number in range(len(each))]
    print("kernels a second:", " + ".join(f"{rate:.0f}" for rate in rates), "=", f"{sum(rates):.0f}")
    for name, gaps in (("handovers", handovers), ("from kernel to kernel", within)):
        shown = ", ".join(f"p{100 * part:.0f} {percentile(gaps, part):.0f}" for part in (0.1, 0.5, 0.9))
        print(f"{name}: {len(gaps) / seconds:.0f} a second; us: {shown}")


if __name__ == "__main__":
    main(sys.argv[1:])
