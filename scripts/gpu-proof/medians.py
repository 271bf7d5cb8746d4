"""Medians of few and noisy values."""

import math
import statistics


def median_and_interval(values, confidence=0.95):
    """The median, and the order statistics between which the true one lies with at least this confidence;
    the extremes where there are too few values for that."""
    return statistics.median(values), *interval(values, 50, confidence)


def percentile_and_interval(values, percent, confidence=0.95):
    """The same for a percentile."""
    return percentile(values, percent), *interval(values, percent, confidence)


def interval(values, percent, confidence):
    """The k-th smallest value is above the true percentile where fewer than k of all fall below that one: a binomial
    law. Half of the doubt is left on each side."""
    ordered, part = sorted(values), percent / 100
    count, doubt = len(ordered), (1 - confidence) / 2
    # By logarithms: a decode loop tells ten thousands of values.
    ways = [math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) for k in range(count + 1)]
    below = [math.exp(ways[k] + k * math.log(part) + (count - k) * math.log(1 - part)) for k in range(count + 1)]
    low, at_most = 0, 0.0
    while low < count and at_most + below[low] <= doubt:
        at_most += below[low]
        low += 1
    high, at_least = count, 0.0
    while high > 0 and at_least + below[high] <= doubt:
        at_least += below[high]
        high -= 1
    return ordered[max(low - 1, 0)], ordered[min(high, count - 1)]


def percentile(values, percent):
    """The smallest value that so many of a hundred do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(percent / 100 * len(ordered)) - 1, 0)]


def shown(found, digits=4):
    """A median with its interval as text."""
    median, low, high = (f"{value:.{digits}f}" for value in found)
    return f"{median} ({low} to {high})"
