"""Kernels that stand for the PyTorch programs on the simulated GPU, by the driver's own calls."""

import time

import gpu
from work import Work


class Clock:
    """What was launched before a mark has ended once the device is idle; there is nothing better without events."""

    def __init__(self, driver):
        self.driver = driver

    def mark(self, _):
        return [None]

    def is_done(self, mark):
        self.wait(mark)
        return True

    def wait(self, mark):
        if mark[0] is None:
            self.synchronize()
            mark[0] = time.monotonic()

    def at(self, mark):
        self.wait(mark)
        return mark[0]

    def synchronize(self):
        self.driver.call("cuCtxSynchronize")


def make(name):
    """The work that `spin-US-COUNT[-waits]` names, and its clock."""
    _, us, count, *waits = name.split("-")
    driver = gpu.Driver()
    spin = gpu.Spin(driver, float(us), 1)

    def step():
        for _ in range(int(count)):
            spin.launch()

    return Work(step, waits=bool(waits), made_with="the driver's calls"), Clock(driver)
