"""Medians of few and noisy values."""

import math
import statistics


def median_and_interval(values, confidence=0.95):
    """The median, and the order statistics between which the true one lies with at least this confidence;
    the extremes where there are too few values for that."""
    ordered = sorted(values)
    count = len(ordered)
    skipped, below = 0, 0.0
    # The true median is below the k-th smallest value where fewer than k of all fall below it.
    for skipped in range(count // 2 + 1):
        below += math.comb(count, skipped) / 2**count
        if 2 * below > 1 - confidence:
            break
    low = max(skipped - 1, 0)
    return statistics.median(ordered), ordered[low], ordered[count - 1 - low]


def percentile(values, percent):
    """The smallest value that so many of a hundred do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)]


def shown(found, digits=4):
    """A median with its interval as text."""
    median, low, high = (f"{value:.{digits}f}" for value in found)
    return f"{median} ({low} to {high})"
