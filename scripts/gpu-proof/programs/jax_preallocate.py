"""JAX as it comes: takes three quarters of the memory at its start, then computes in it."""

import json
import os
import time

import jax
import jax.numpy as jnp

ones = jnp.ones((4096, 4096), dtype=jnp.float32)
product = jax.jit(lambda a: a @ a)
correct = all(float(product(ones)[number, number]) == 4096.0 for number in range(3))
stats = jax.devices()[0].memory_stats() or {}
time.sleep(0.3)
print(json.dumps({"pid": os.getpid(), "correct": correct, "platform": jax.devices()[0].platform, "limit": stats.get("bytes_limit", 0), "pool": stats.get("pool_bytes", 0)}))
