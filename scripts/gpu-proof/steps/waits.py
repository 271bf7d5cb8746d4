"""Work that waits for another device or for a word in memory is not charged for the waiting, and waits that hold
nothing up make no work free."""

from steps import dense, watched

SETTINGS = {
    "kinds": ["pipeline", "word", "idle"],
    "seconds": 3.0,
    # Programs that work half of the time, and keep their speed under this.
    "enough": 65,
    # ... and under this get as much of it as that is of what they need.
    "little": 25,
    # Of one that fills the device.
    "dense": 50,
}
LEAST_KEPT, TOLERANCE_POINTS = 0.95, 3.0
START = 8


def seconds(settings):
    """About how long it takes."""
    return sum(4 if kind == "idle" else 3 for kind in settings.kinds) * (settings.seconds + START)


def run(proof):
    rows = proof.data["waits"] = []
    if proof.fake:
        proof.check("waits", None, "not run: no real GPU", "rates")
        return
    for kind in [kind for kind in proof.settings.kinds if kind != "idle"]:
        with proof.guard(f"{kind}: waiting is not charged", f"at least {LEAST_KEPT}"):
            native = rate(proof, kind, None)
            if native is None:
                proof.check(kind, None, "skipped: one device is visible", "two visible devices")
                continue
            enough, little = (rate(proof, kind, percent) / native for percent in (proof.settings.enough, proof.settings.little))
            rows.append({"kind": kind, "native": native, "enough": enough, "little": little})
            proof.check(f"{kind}: waiting is not charged, at {proof.settings.enough} %", enough >= LEAST_KEPT, f"{enough:.3f} of native", f"at least {LEAST_KEPT}")
            # How much of a device it needs alone is about a half; nobody may have more than the share of that.
            part = 50 * little
            most = proof.settings.little + TOLERANCE_POINTS
            proof.check(f"{kind} at {proof.settings.little} %", part <= most, f"{part:.1f} % of a device, if it needs half of one", f"at most {most:g}")
    if "idle" not in proof.settings.kinds:
        return
    with proof.guard("waits that hold nothing up", "a share"):
        # Programs that let the device cool down are faster for it: what counts is what the same gets without waits.
        delivered = {kind: 100 * rate(proof, kind, proof.settings.dense) / rate(proof, kind, None) for kind in ("plain", "idle")}
        rows.append({"kind": "idle", "delivered": delivered})
        close = delivered["idle"] <= delivered["plain"] + TOLERANCE_POINTS
        text = f"{delivered['idle']:.1f} % of native, without the waits {delivered['plain']:.1f} %"
        proof.check(f"waits that hold nothing up, at {proof.settings.dense} %", close, text, f"at most {TOLERANCE_POINTS:g} points more")


def rate(proof, kind, percent):
    """Steps a second; none where it cannot run here."""
    command = watched.program("torch_waits.py", kind, proof.settings.seconds)
    if percent:
        command = proof.limited(["--compute", f"{percent}%"], command)
    found = watched.said_by(proof.run(command, proof.settings.seconds * 4 + dense.STARTUP + 30))
    return found.get("rate")
