"""The steps of the proof, in the order in which they run."""

from steps import compute, frameworks, hooks, launch, memory, pairs, patterns

# name, seconds that it takes on an H200 (about), function
ALL = [
    ("hooks", 2, hooks.run),
    ("memory", 25, memory.run),
    ("compute", 100, compute.run),
    ("pairs", 70, pairs.run),
    ("launch", 90, launch.run),
    ("frameworks", 200, frameworks.run),
    ("patterns", 50, patterns.run),
]
