"""JAX: compiled gradient steps of a small network."""

import json
import time

import jax
import jax.numpy as jnp

STEPS, WARM_UP, WIDTH, BATCH = 300, 20, 1024, 512

key = jax.random.PRNGKey(17)
keys = jax.random.split(key, 6)
weights = [jax.random.normal(k, (WIDTH, WIDTH)) / WIDTH**0.5 for k in keys[:4]]
x, target = jax.random.normal(keys[4], (BATCH, WIDTH)), jax.random.normal(keys[5], (BATCH, WIDTH))


def loss(weights, x, target):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return jnp.mean((x - target) ** 2)


@jax.jit
def step(weights, x, target):
    value, slopes = jax.value_and_grad(loss)(weights, x, target)
    return [weight - 2.0 * slope for weight, slope in zip(weights, slopes)], value


values = []
for number in range(STEPS):
    if number == WARM_UP:
        jax.block_until_ready(weights)
        begun = time.perf_counter()
    weights, value = step(weights, x, target)
    if number % 50 == 49:
        values.append(float(value))
jax.block_until_ready(weights)
seconds = time.perf_counter() - begun
device = jax.devices()[0]
print(
    json.dumps(
        {
            "program": "jax_grad",
            "rate": (STEPS - WARM_UP) / seconds,
            "unit": "steps/s",
            "result": values,
            "correct": device.platform == "gpu" and values[-1] < values[0],
            "device": str(device.device_kind),
            "jax": jax.__version__,
        }
    )
)
