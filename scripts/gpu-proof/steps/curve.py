"""Kernels over time, on the machine's clock, from a program's windows."""

import itertools

from harness import StepFailed


class Curve:
    """What a steered program has told when it ended; `window` is what it was started with, in seconds."""

    def __init__(self, program, window):
        if program.windows is None:
            raise StepFailed("the program told no windows")
        self.window, self.windows = window, program.windows
        self.at = program.result["windows_at"]
        self.sums = [0.0, *itertools.accumulate(program.windows)]

    def until(self, moment):
        position = min(max((moment - self.at) / self.window, 0), len(self.sums) - 1)
        whole = min(int(position), len(self.sums) - 2)
        return self.sums[whole] + (position - whole) * (self.sums[whole + 1] - self.sums[whole])

    def rate(self, begin, end):
        return (self.until(end) - self.until(begin)) / (end - begin)

    def longest_pause(self, begin, end):
        """The longest time without any work between two moments, in whole windows: it may be two windows longer."""
        first, last = (int((moment - self.at) / self.window) for moment in (begin, end))
        longest = here = 0
        for kernels in self.windows[max(first, 0) : max(last, 0)]:
            here = 0 if kernels > 0 else here + 1
            longest = max(longest, here)
        return longest * self.window
