"""What the proof computes from what it measured. Run: python3 -m unittest discover -s scripts/gpu-proof"""

import contextlib
import itertools
import pathlib
import random
import sys
import tempfile
import time
import types
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
sys.path.insert(1, str(pathlib.Path(__file__).resolve().parent / "programs"))

import harness  # noqa: E402
import medians  # noqa: E402
import settings  # noqa: E402
import toggled  # noqa: E402
from steps import attached, latency, open_gate, picture, several_gpus, steered, turns  # noqa: E402


class Debugger(unittest.TestCase):
    def test_kernels_that_cuda_gdb_lists_are_read(self):
        text = """
  Kernel Parent Dev Grid Status                     SMs Mask GridDim BlockDim Invocation
*      0      -   0    1 Active 0x00000000000000000000000003f (6,1,1) (96,1,1) debugged(values=0x7fffd5a00000, launch=0)
[Switching focus to CUDA kernel 0, grid 2]
*      1      -   0    2 Active 0x00000000000000000000000003f (6,1,1) (96,1,1) debugged(values=0x7fffd5a00000, launch=1)
No CUDA kernels.
"""
        found = attached.kernels(text)
        self.assertEqual(found[0], ["6,1,1", "96,1,1", "debugged(values=ADDRESS, launch=0)"])
        self.assertEqual([arguments for _, _, arguments in found], ["debugged(values=ADDRESS, launch=0)", "debugged(values=ADDRESS, launch=1)"])
        self.assertEqual(attached.kernels("No CUDA kernels.\n"), [])


class Medians(unittest.TestCase):
    def test_interval_holds_the_true_median_as_often_as_it_says(self):
        chance = random.Random(3)
        held = 0
        for _ in range(400):
            _, low, high = medians.median_and_interval([chance.gauss(1.0, 0.1) for _ in range(15)])
            held += low <= 1.0 <= high
        self.assertGreaterEqual(held / 400, 0.93)
        self.assertLess(held / 400, 1.0)

    def test_interval_of_a_high_percentile_holds_it_too(self):
        chance, held = random.Random(5), 0
        for _ in range(400):
            _, low, high = medians.percentile_and_interval([chance.random() for _ in range(500)], 99)
            held += low <= 0.99 <= high
        self.assertGreaterEqual(held / 400, 0.93)
        self.assertLess(held / 400, 1.0)
        # As many as a loop of words tells.
        self.assertLess(medians.percentile_and_interval(list(range(30_000)), 99)[2], 29_999)

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

    def test_the_median_step_tells_the_speed(self):
        took = [[1.0, 9.9, 2.0], [2.0, 9.9, 4.0], [2.5, 9.9, 5.0], [3.0, 9.9, 40.0], [9.0, 9.9, 1.0]]
        program = types.SimpleNamespace(took=took)
        self.assertEqual(open_gate.median_speed(program, 1.5, 3.0), 200.0)
        self.assertEqual(open_gate.median_speed(program, 4.0, 5.0), 0.0)


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
        row = {"front": "server", "way": "alone", "rate": 20.0, "rate_of_alone": None, "p99_interval": [0.9, 1.1], "p99_rounds": [1.0, 1.1], **dict.fromkeys(latency.COLUMNS, 1.0)}
        lines = latency.table([row]).splitlines()
        self.assertEqual({line.count("|") for line in lines}, {len(latency.COLUMNS) + 8})

    def test_processes_are_those_that_the_ways_need(self):
        chosen = types.SimpleNamespace(fronts=["server"])
        self.assertEqual(latency.needed(chosen, ["mps", "mps-priority"]), [("mps", "back"), ("mps", "server"), ("mps-low", "back")])
        self.assertEqual(latency.needed(chosen, []), [])
        self.assertEqual(latency.needed(chosen, ["by-itself"]), [("sluice", "server")])

    def test_rounds_of_a_way_are_taken_together(self):
        found = latency.Found()
        found.rounds = [([5.0, 7.0], [5.0, 6.0], 2.0, 1.5), ([6.0], [6.0], 2.5, None)]
        self.assertEqual(found.all(), ([5.0, 7.0, 6.0], [5.0, 6.0, 6.0], 4.5, [1.5]))


class Picture(unittest.TestCase):
    def test_it_is_xml_with_a_mark_and_a_name_for_each_way_beside_training(self):
        svg = "{http://www.w3.org/2000/svg}"
        rows = [{"front": front, "way": "alone", "p99": 10.6} for front in ("server", "a < b")]
        ways = {"slicing": (0.9, 26.0, "rect"), "mps": (0.92, 59.0, "path"), "mps-priority": (0.9, 58.9, "path"), "high-low": (0.5, 17.0, "circle"), "balance": (1.0, 17.1, "circle")}
        rows += [{"front": row["front"], "way": way, "training_of_alone": part, "p99": p99} for row in rows for way, (part, p99, _) in ways.items()]
        drawn = xml.etree.ElementTree.fromstring(picture.latency({"gates": "stream", "back": "train & test", "rows": rows}))
        parts = drawn.findall(f"{svg}g")
        self.assertEqual(len(parts), 2)
        for one, front in zip(parts, ("server", "a < b")):
            texts = [text.text for text in one.iter(f"{svg}text")]
            self.assertIn(f"{front} beside train & test, gates: stream", texts)
            for way, (_, _, shape) in ways.items():
                self.assertIn(picture.NAMES.get(way, way), texts)
                self.assertTrue(one.findall(f"{svg}{shape}"))

    def test_names_do_not_lie_on_each_other(self):
        points = [(way, 0.8 + 0.01 * number, 20.0 + number / 10, 1.0) for number, way in enumerate(("slicing", "fixed", "balance", "high-low"))]
        drawn = xml.etree.ElementTree.fromstring(f"<g>{''.join(picture.scatter('title', points, 10.0))}</g>")
        names = [text for text in drawn.iter("text") if text.get("fill") and text.text != "best"]
        self.assertEqual(len(names), len(points))
        for first, second in itertools.combinations([float(text.get("y")) for text in names], 2):
            self.assertGreaterEqual(abs(first - second), picture.LINE)

    def test_what_the_front_loses_is_said(self):
        texts = "".join(picture.scatter("title", [("slicing", 0.9, 3.2, 0.25), ("balance", 0.9, 20.0, 1.0)], 0.8))
        self.assertIn("slicing (own speed 0.25)", texts)
        self.assertIn(">50/50 balance<", texts)

    def test_where_nothing_was_found_there_is_none(self):
        self.assertIsNone(picture.latency({"gates": "stream", "back": "x", "rows": [{"front": "server", "way": "alone", "p99": 1.0}]}))


@contextlib.contextmanager
def a_proof():
    """With programs of Python alone."""
    with tempfile.TemporaryDirectory() as folder:
        proof = harness.Harness(pathlib.Path(folder), pathlib.Path(folder), False, 60)
        try:
            yield proof
        finally:
            proof.close()


def python(text):
    return [sys.executable, "-c", text]


OBEDIENT = """
import json, sys, time
print(json.dumps({"work": "x", "acknowledges": True}), flush=True)
for at in range(3):
    print(json.dumps({"at": time.monotonic(), "kernels": at}), flush=True)
for line in sys.stdin:
    if line.strip() == "pause":
        print(json.dumps({"paused": 0}), flush=True)
"""


class Programs(unittest.TestCase):
    def test_what_a_launcher_has_put_into_another_session_ends_with_it(self):
        launcher = "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(60)'], start_new_session=True); time.sleep(60)"
        with a_proof() as proof:
            process = proof.start(python(launcher))
            self.assertEqual(process.stdout.readline(), "1\n")
            self.assertEqual(len(harness.marked(process.mark)), 2)
            harness.kill_group(process)
            process.communicate(timeout=10)
            self.assertEqual(harness.marked(process.mark), [])

    def test_what_does_not_start_is_left_out(self):
        commands = {"good": (python(OBEDIENT), None), "ends": (python("raise SystemExit('no device')"), None), "hangs": (python("import time; time.sleep(60)"), None)}
        with a_proof() as proof:
            with steered.started(proof, commands, wait=4) as programs:
                self.assertEqual(list(programs), ["good"])
                steered.pause(programs.values())
            self.assertEqual(sorted(one["what"] for one in proof.criteria), ["ends: it starts", "hangs: it starts"])
            self.assertIn("no device", "".join(one["measured"] for one in proof.criteria))

    def test_who_does_not_pause_is_an_error(self):
        deaf = OBEDIENT.replace('"pause"', '"never"')
        with a_proof() as proof, steered.started(proof, {"deaf": (python(deaf), None)}, wait=5) as programs:
            steered.PAUSE_SECONDS, before = 0.3, steered.PAUSE_SECONDS
            with self.assertRaises(harness.StepFailed):
                steered.pause(programs.values())
            steered.PAUSE_SECONDS = before

    def test_a_time_limit_ends_with_its_block(self):
        with a_proof() as proof:
            with proof.within(5):
                self.assertLess(proof.left(), 5.1)
                with proof.within(50):
                    self.assertLess(proof.left(), 5.1)
            self.assertGreater(proof.left(), 50)


class SeveralGpus(unittest.TestCase):
    def test_charges_are_parts_of_the_time_by_device(self):
        text = several_gpus.parts([{"a": 0, "b": 500_000}, {}], [{"a": 1_000_000, "b": 1_500_000}, {"b": 500_000}], 2.0)
        self.assertEqual(text, "; charged 0.500/0.500 + 0.250 of the time")

    def test_each_case_can_be_chosen_alone(self):
        settings_of = lambda **given: types.SimpleNamespace(**{**several_gpus.SETTINGS, **given})  # noqa: E731
        several_gpus.visible, before = lambda: 2, several_gpus.visible
        try:
            whole = several_gpus.seconds(settings_of())
            parts = [several_gpus.seconds(settings_of(cells=[cell])) for cell in several_gpus.SETTINGS["cells"]]
        finally:
            several_gpus.visible = before
        self.assertAlmostEqual(sum(parts), whole)

    def test_whole_turns_are_told_where_a_later_one_fails(self):
        rates = iter([10.0, 10.0, 10.0, 5.0, 5.0])

        def one(*_):
            return [next(rates)]

        with a_proof() as proof:
            proof.settings = types.SimpleNamespace(**{**several_gpus.SETTINGS, "turns": 3})
            rows, before = [], (steered.rates, steered.slow_rates, several_gpus.tell)
            steered.rates = steered.slow_rates = one
            several_gpus.tell = lambda *_: None
            try:
                with self.assertRaises(StopIteration):
                    several_gpus.one_job(proof, rows, "job", None, None)
            finally:
                steered.rates, steered.slow_rates, several_gpus.tell = before
        self.assertEqual([(row["way"], row["each"][0][0]) for row in rows], [("memory limit only", 1.0), ("100 %", 1.0), ("50 %", 0.5)])


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
