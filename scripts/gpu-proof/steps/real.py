"""Real programs as commands, and which of them are run: those that Sluice was tuned on, or those that it is judged by."""

from steps import steered, watched

TUNED = ["train-large", "train-small", "decode", "graph", "generate", "convnet"]
# Nobody looks at these while tuning.
JUDGED = ["moe", "unet", "lstm", "beam", "jax", "cupy", "vit", "sparse"]
# What stands for them on the simulated GPU: the length of a kernel in microseconds, and how many a step has.
STAND_INS = {"train-large": "spin-500-40", "train-small": "spin-100-20", "decode": "spin-100-5-waits", "graph": "spin-200-4-waits", "forward": "spin-400-10-waits"}
STAND_IN = "spin-250-20"
# From its start until it has warmed up, on an H200.
START = 14


def work(proof, name):
    """What `toggled.py` calls it."""
    return STAND_INS.get(name, STAND_IN) if proof.fake else name


def command(proof, name, *options):
    """The program in a loop, which obeys the proof."""
    return watched.program("toggled.py", work(proof, name), steered.LONGEST, "--commands", *options)


def alone(proof, name, seconds, *options):
    """The program for some seconds."""
    return watched.program("toggled.py", work(proof, name), seconds, *options)


def made_with(program):
    """What the program says that it was made with: a library, or its shape in plain PyTorch."""
    return (program.result or {}).get("made_with", "not told")
