"""Several devices at once: each has limits, a gate and an account of its own.

Needs two devices that programs see; where there is one, that is told and nothing is measured.
"""

import json

from harness import StepFailed
from steps import cost, daemon, dense, patterns, watched

SETTINGS = {
    "kernel_us": 130,
    "native": 1.5,
    "seconds": 3.0,
    # Of one process on both, by device.
    "shares": ["50/50", "25/75", "90/10"],
    # Of two processes, each with a device of its own, under one daemon. More than one device has.
    "own": ["75/75", "25/90"],
    "launch_pairs": 10,
    "launch_turns": 10,
    "launches": 4_000,
}
FULL = {"seconds": 5.0, "launch_pairs": 20}
TOLERANCE_POINTS = 2.0
START = 0.7
WAYS = {"compute limit 99%": ["--compute", "99%"]}


def seconds(settings):
    """About how long it takes."""
    runs = len(settings.shares) + len(settings.own)
    return 2 + settings.native + START + runs * (settings.seconds + START) + cost.launch_seconds(settings, len(WAYS) + 1)


def run(proof):
    found = proof.data["devices"] = {"shares": [], "own": [], "launch": {}}
    kernel_us = proof.settings.kernel_us
    iterations = dense.native(proof, kernel_us, 0.3)["iterations"]
    tenant = proof.tenant(*dense.again(kernel_us, proof.settings.native, iterations, "--devices", 2))
    finished = proof.run(tenant, timeout=proof.settings.native * 2 + dense.STARTUP)
    if "does not exist" in finished.err:
        proof.check("several devices", None, "skipped: one device is visible", "two visible devices")
        return
    natives = watched.said_by(finished)["devices"]
    for shares in proof.settings.shares:
        one_process(proof, found["shares"], natives, shares)
    with daemon.socket() as socket:
        for shares in proof.settings.own:
            own_device(proof, found["own"], natives, shares, socket)
    with proof.guard("launches where two devices are visible", "times"):
        cost.launch(proof, found["launch"], WAYS, "two devices, ")


def percents(shares):
    return [float(share) for share in shares.split("/")]


def arguments(proof, iterations, *options):
    return proof.tenant(*dense.again(proof.settings.kernel_us, proof.settings.seconds, iterations, "--windows", patterns.WINDOW, *options))


def judge(proof, rows, name, shares, natives, results):
    delivered = [100 * patterns.steady(result) / native["rate"] for native, result in zip(natives, results)]
    rows.append({"shares": shares, "delivered": delivered, "results": results})
    ok = all(abs(got - share) <= TOLERANCE_POINTS for got, share in zip(delivered, shares))
    proof.check(name, ok, f"{', '.join(f'{got:.1f}' for got in delivered)} % of native", wanted(shares))


def wanted(shares):
    return f"{', '.join(f'{share:g}' for share in shares)} within {TOLERANCE_POINTS:g} points"


def one_process(proof, rows, natives, text):
    """A thread for each device. `sluice run` gives each device the same; what differs is said by the environment."""
    shares, name = percents(text), f"one process on two devices at {text}"
    with proof.guard(name, wanted(shares)):
        tenant, env = arguments(proof, natives[0]["iterations"], "--devices", 2), None
        if shares[0] == shares[1]:
            tenant = proof.limited(["--compute", f"{shares[0]:g}%"], tenant)
        else:
            limits = {native["uuid"]: share for native, share in zip(natives, shares)}
            env = {"LD_PRELOAD": proof.tool("libcuda_limiter.so"), "TENSOR_FUSION_CUDA_UP_LIMIT": json.dumps(limits)}
        result = watched.said_by(proof.run(tenant, proof.settings.seconds * 2 + dense.STARTUP, env))
        judge(proof, rows, name, shares, natives, result["devices"])


def own_device(proof, rows, natives, text, socket):
    """Two sessions at once that see one device each."""
    shares, name = percents(text), f"two processes, each with its device, at {text}"
    with proof.guard(name, wanted(shares)), daemon.Daemon(proof, socket):
        commands = []
        for native, share in zip(natives, shares):
            options = ["--device", native["uuid"], "--compute", f"{share:g}%"]
            commands.append((proof.limited(options, arguments(proof, native["iterations"]), daemon=socket), None))
        ran = watched.side_by_side(proof, commands, proof.settings.seconds * 2 + dense.STARTUP)
        results = [watched.said_by(one) for one in ran]
        for native, result in zip(natives, results):
            if native["uuid"] != result["uuid"]:
                raise StepFailed(f"a process ran on {result['uuid']} instead of {native['uuid']}")
        judge(proof, rows, name, shares, natives, results)
