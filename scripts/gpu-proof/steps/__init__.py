"""The steps of the proof, in the order in which they run."""

from steps import (
    alloc_cost,
    allocators,
    ceiling,
    cost,
    estimate,
    frameworks,
    hidden_memory,
    hooks,
    live,
    many,
    memory,
    oversubscribe,
    patterns,
    resize,
    shared_memory,
    sharing,
    windows,
)

# name, seconds that it takes on an H200 (about; a function: of the settings), function
ALL = [
    ("hooks", 2, hooks.run),
    ("memory", 35, memory.run),
    ("ceiling", 20, ceiling.run),
    ("allocators", 30, allocators.run),
    ("shared-memory", 9, shared_memory.run),
    ("oversubscribe", 14, oversubscribe.run),
    ("hidden-memory", 8, hidden_memory.run),
    ("resize", 10, resize.run),
    ("alloc-cost", 60, alloc_cost.run),
    ("windows", windows.seconds, windows.run),
    ("many", many.seconds, many.run),
    ("live", live.seconds, live.run),
    ("cost", cost.seconds, cost.run),
    ("frameworks", 200, frameworks.run),
    ("patterns", patterns.seconds, patterns.run),
    ("estimate", 90, estimate.run),
    ("sharing", sharing.seconds, sharing.run),
]
