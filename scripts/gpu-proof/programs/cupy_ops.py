"""CuPy: elementwise work, a kernel of its own, matrix products and sums."""

import json
import time

import cupy

STEPS, WARM_UP, WIDTH = 300, 10, 1024

random = cupy.random.RandomState(19)
a = random.standard_normal((WIDTH, WIDTH), dtype=cupy.float32) / WIDTH**0.5
x = random.standard_normal((WIDTH, WIDTH), dtype=cupy.float32)
blend = cupy.ElementwiseKernel("float32 x, float32 y", "float32 z", "z = 0.7f * x + 0.3f * tanhf(y)", "blend")
# The same in numbers that the host can check.
small = blend(cupy.arange(4, dtype=cupy.float32), cupy.zeros(4, dtype=cupy.float32))
correct = bool(cupy.allclose(small, 0.7 * cupy.arange(4))) and int(cupy.arange(1_000_001).sum()) == 500_000_500_000

sums = []
for step in range(STEPS):
    if step == WARM_UP:
        cupy.cuda.Device().synchronize()
        begun = time.perf_counter()
    x = blend(x, a @ x)
    if step % 50 == 49:
        sums.append(float(cupy.abs(x).sum()))
cupy.cuda.Device().synchronize()
seconds = time.perf_counter() - begun
print(
    json.dumps(
        {
            "program": "cupy_ops",
            "rate": (STEPS - WARM_UP) / seconds,
            "unit": "steps/s",
            "result": sums,
            "correct": correct,
            "cupy": cupy.__version__,
        }
    )
)
