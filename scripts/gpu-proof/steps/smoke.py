"""Each program for two seconds, natively: one short call finds what is wrong with any of them.

They run a few at a time, as this measures nothing.
"""

import concurrent.futures

from steps import latency, real, watched

SETTINGS = {
    "programs": [*real.TUNED, *real.JUDGED],
    "seconds": 2.0,
    "at_once": 5,
    # 1: under `sluice run --compute 100` as well.
    "limited": 0,
    # 0: only the programs that are named.
    "all": 1,
}
TIMEOUT = 75
SEVERAL = ["ddp", "dp", "tensor", "pipeline", "collectives", "threads", "peer"]


def seconds(settings):
    """About how long it takes."""
    count = len(settings.programs) * (1 + settings.limited) + settings.all * (len(latency.FRONTS) + len(SEVERAL) + 2)
    # They slow each other down.
    return 1.3 * count * (real.START + settings.seconds) / settings.at_once + 10


def commands(proof):
    """Each with its name and what it needs beside it."""
    settings, found = proof.settings, []
    for name in settings.programs:
        found.append((name, real.alone(proof, name, settings.seconds)))
        if settings.limited:
            found.append((f"{name}, limited", proof.limited(["--compute", "100%"], real.alone(proof, name, settings.seconds))))
    if not settings.all:
        return found
    for name, options in latency.FRONTS.items():
        found.append((f"{name}, timed", real.alone(proof, latency.WORKS[name], settings.seconds, *options)))
    if not proof.fake:
        found += [(f"several GPUs: {kind}", watched.program("ranks.py", kind, "--seconds", settings.seconds, "--allow-one")) for kind in SEVERAL]
        found += [("attached", watched.program("attached.py")), ("attached, profiled", watched.program("attached.py", "--profile"))]
    return found


def run(proof):
    rows = proof.data["smoke"] = []

    def one(name, command):
        return name, proof.run(command, timeout=TIMEOUT)

    with concurrent.futures.ThreadPoolExecutor(max_workers=max(int(proof.settings.at_once), 1)) as pool:
        for future in concurrent.futures.as_completed([pool.submit(one, *each) for each in commands(proof)]):
            name, finished = future.result()
            said = finished.json()
            ok = finished.ok and said is not None
            rows.append({"name": name, "ok": ok, "said": said, "seconds": finished.seconds})
            if ok:
                parts = [f"{said['rate']:.1f} {said.get('unit', 'a second')}"] if "rate" in said else []
                parts += [f"{said['step_ms']:.2f} ms a step"] if "step_ms" in said else []
                parts += [str(said[key]) for key in ("made_with", "skipped") if key in said]
                text = ", ".join(parts) or str(said)[:150]
            else:
                text = finished.why()
                proof.show(f"== {name}: {text}\n{finished.err[-2500:]}")
            proof.check(name, ok, f"{text}; {finished.seconds:.0f} s", "it runs")
