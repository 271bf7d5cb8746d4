"""The steps of the proof, in the order in which they run."""

from steps import (
    alloc_cost,
    allocators,
    ceiling,
    compute,
    estimate,
    frameworks,
    hidden_memory,
    hooks,
    launch,
    memory,
    oversubscribe,
    pairs,
    patterns,
    resize,
    shared_memory,
    sharing,
)

# name, seconds that it takes on an H200 (about), function
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
    ("compute", 100, compute.run),
    ("pairs", 70, pairs.run),
    ("launch", 90, launch.run),
    ("frameworks", 200, frameworks.run),
    ("patterns", 50, patterns.run),
    ("estimate", 90, estimate.run),
    ("sharing", 400, sharing.run),
]
