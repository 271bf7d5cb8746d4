"""Every driver function that Sluice names, and that this driver exports, is patched."""


def run(proof):
    command = [proof.tool("sluice"), "hooks"] + (["--fake-gpu"] if proof.fake else [])
    finished = proof.run(command, timeout=60)
    lines = [line for line in finished.out.splitlines() if line.strip()]
    total = lines[-1].strip() if lines else finished.why()
    proof.data["hooks"] = {"status": finished.status, "total": total, "table": lines[:-1]}
    proof.check("every exported function that Sluice names is patched", finished.ok, total, "exit status 0")
