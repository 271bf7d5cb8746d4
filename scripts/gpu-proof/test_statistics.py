"""What the proof computes from what it measured. Run: python3 -m unittest discover -s scripts/gpu-proof"""

import pathlib
import random
import sys
import types
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent / "programs"))

import medians  # noqa: E402
import settings  # noqa: E402
import toggled  # noqa: E402
from steps import latency, open_gate, picture, turns  # noqa: E402


class Medians(unittest.TestCase):
    def test_interval_holds_the_true_median_as_often_as_it_says(self):
        chance = random.Random(3)
        held = 0
        for _ in range(400):
            _, low, high = medians.median_and_interval([chance.gauss(1.0, 0.1) for _ in range(15)])
            held += low <= 1.0 <= high
        self.assertGreaterEqual(held / 400, 0.93)
        self.assertLess(held / 400, 1.0)

    def test_percentiles_are_values_that_were_measured(self):
        values = list(range(1, 101))
        self.assertEqual([medians.percentile(values, percent) for percent in (50, 95, 99, 100)], [50, 95, 99, 100])
        self.assertEqual(medians.percentile([7.0], 99), 7.0)


class OpenGate(unittest.TestCase):
    def test_a_drift_cancels_and_a_loss_does_not(self):
        """A program that gets faster by a part of a hundred each second, and loses 5 % under the limit."""
        rates = [(None if i % 2 == 0 else "100", (100 + i) * (0.95 if i % 2 else 1.0)) for i in range(21)]
        ratios = open_gate.beside_neighbours(rates, "100")
        self.assertEqual(len(ratios), 10)
        for ratio in ratios:
            self.assertAlmostEqual(ratio, 0.95)
        for ratio in open_gate.of_like(rates):
            self.assertAlmostEqual(ratio, 1.0)

    def test_each_limit_is_compared_with_native_stretches_only(self):
        rates = [(None, 100.0), ("100", 90.0), (None, 100.0), ("99", 50.0), (None, 100.0)]
        self.assertEqual(open_gate.beside_neighbours(rates, "100"), [0.9])
        self.assertEqual(open_gate.beside_neighbours(rates, "99"), [0.5])


class Turns(unittest.TestCase):
    def test_pauses_lie_between_work(self):
        self.assertEqual(turns.zero_runs([0, 0, 1, 0, 0, 0, 2, 1, 0, 1, 0, 0]), [3, 1])
        self.assertEqual(turns.zero_runs([0, 0]), [])

    def test_the_gap_between_long_kernels_is_no_pause(self):
        # Kernels of 2.5 ms leave windows of 1 ms without an end; a pause of 40 ms is one.
        windows = ([0, 0, 1] * 20 + [0] * 40) * 3
        found = turns.waits(types.SimpleNamespace(at=0.0, windows=windows), 0.0, len(windows) * turns.WINDOW, 2500)
        self.assertEqual(found["count"], 2)
        self.assertAlmostEqual(found["longest_ms"], 42.0)


class Latency(unittest.TestCase):
    def test_requests_come_at_random_and_are_the_same_each_time(self):
        first, second = toggled.arrivals(20, 7), toggled.arrivals(20, 7)
        pauses = [first() for _ in range(4000)]
        self.assertEqual(pauses[:50], [second() for _ in range(50)])
        self.assertAlmostEqual(sum(pauses) / len(pauses), 0.05, delta=0.003)

    def test_table_has_a_cell_for_each_column(self):
        row = {"front": "server", "way": "alone", "rate": 20.0, "rate_of_alone": None, **dict.fromkeys(latency.COLUMNS, 1.0)}
        lines = latency.table([row]).splitlines()
        self.assertEqual({line.count("|") for line in lines}, {len(latency.COLUMNS) + 6})

    def test_picture_is_xml_with_a_mark_for_each_point(self):
        import xml.etree.ElementTree

        points = [("slicing", 0.9, 26.0), ("mps", 0.92, 59.0), ("high-low", 0.5, 17.0), ("a < b", 0.5, 17.1)]
        drawn = xml.etree.ElementTree.fromstring(picture.scatter("server & training", points, 10.6))
        texts = [one.text for one in drawn.iter("{http://www.w3.org/2000/svg}text")]
        for name, _, _ in points:
            self.assertIn(name, texts)


class Settings(unittest.TestCase):
    def test_the_judge_has_other_programs_than_the_tuner(self):
        for step in (open_gate.run, latency.run, turns.run):
            tuned = settings.resolve("step", step, False, False, {})
            judged = settings.resolve("step", step, False, True, {})
            for name in ("programs", "fronts", "back", "trainings"):
                if hasattr(tuned, name):
                    first, second = getattr(tuned, name), getattr(judged, name)
                    self.assertFalse(set([first] if isinstance(first, str) else first) & set([second] if isinstance(second, str) else second))


if __name__ == "__main__":
    unittest.main()
