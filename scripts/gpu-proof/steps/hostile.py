"""Programs and neighbours that mean harm: the limits hold, and others keep what is theirs."""

import json
import subprocess

from harness import StepFailed, kill_group
from steps import daemon, dense, steered, watched

SETTINGS = {"seconds": 6.0, "settle": 3.0, "threads": [32, 200], "launch_ms": [30, 300], "native": 2.0}
TOLERANCE_POINTS, LIE_POINTS, MIB = 2.0, 5.0, 1 << 20
CHILDREN = {
    "no limit in its environment": ["env", "-u", "TENSOR_FUSION_CUDA_MEM_LIMIT", "-u", "TENSOR_FUSION_CUDA_UP_LIMIT"],
    "a higher limit": ["env", 'TENSOR_FUSION_CUDA_MEM_LIMIT={"0": 4294967296}', 'TENSOR_FUSION_CUDA_UP_LIMIT={"0": 100}'],
    "no policy": ["env", "SLUICE_POLICY=none"],
    "no session": ["env", "-u", "SLUICE_SESSION_DIR", 'TENSOR_FUSION_CUDA_MEM_LIMIT={"0": 4294967296}'],
    "nothing at all but the preload": ["sh", "-c", 'exec env -i LD_PRELOAD="$LD_PRELOAD" LD_LIBRARY_PATH="$LD_LIBRARY_PATH" SLUICE_FAKE_NODE="$SLUICE_FAKE_NODE" "$@"', "sh"],
}


def seconds(settings):
    """About how long it takes."""
    crowds = (len(settings.threads) + 2 * len(settings.launch_ms) + 2) * (settings.seconds + settings.settle + 3)
    return settings.native + 15 + 2 * len(CHILDREN) + crowds


def run(proof):
    proof.data["hostile"] = {}
    memory(proof)
    native = dense.native(proof, 1000, proof.settings.native)
    loads = steered.Loads(proof)
    loads.iterations[1000] = native["iterations"]
    tenant = loads.command("dense1000")
    rounds = proof.result(spin("calibrate"), timeout=60)["rounds"]
    with daemon.socket() as socket:
        for count in proof.settings.threads:
            name = f"50 % beside 50 % with {count} threads"
            with proof.guard(name, "a rate"), daemon.Daemon(proof, socket):
                many = proof.limited(["--compute", "50%"], spin("threads", rounds, "--threads", count, seconds=lasts(proof)), daemon=socket)
                got, said = beside(proof, many, tenant, native, daemon_socket=socket)
                check(proof, name, abs(got - 50) <= TOLERANCE_POINTS, f"{got:.1f} %, the other {100 * said['busy']:.1f} %", "50 within 2 points")
        with proof.guard("50 % beside a liar with 1 %", "a rate"), daemon.Daemon(proof, socket):
            liar = spin("liar", rounds, "--socket", socket, seconds=lasts(proof))
            got, said = beside(proof, liar, tenant, native, daemon_socket=socket)
            check(proof, "50 % beside a liar with 1 %", got >= 50 - LIE_POINTS, f"{got:.1f} %", "at least 45 %")
            check(proof, "the liar", 100 * said["busy"] <= 1 + LIE_POINTS, f"{100 * said['busy']:.1f} %", "at most 6 %")
    deaths(proof, rounds, tenant, native)


def memory(proof):
    """Whatever a child says in its environment, the session's limit holds, for it and for those after it."""
    for what, prefix in CHILDREN.items():
        with proof.guard(f"a child with {what}", "at most 1 GiB"):
            fill = proof.tenant("mem", "--api", "alloc", "--chunk", "64MiB", "--cap", "3GiB")
            script = '"$@"; shift $SKIP; exec "$@"'
            command = ["env", f"SKIP={len(prefix)}", "sh", "-c", script, "sh", *prefix, *fill]
            finished = proof.run(proof.limited(["--mem", "1GiB", "--compute", "100%"], command), timeout=60)
            granted = [json.loads(line)["granted_bytes"] // MIB for line in finished.out.splitlines() if line.startswith("{")]
            held = bool(granted) and max(granted) <= 1024
            proof.check(f"a child with {what}", held, f"granted {granted} MiB, status {finished.status}", "at most 1024 MiB each, a refused child included")


def deaths(proof, rounds, tenant, native):
    """What a loop of processes that die costs a program that is not limited: with work, and without any."""
    for kill in (False, True):
        for launch_ms in (0, *proof.settings.launch_ms):
            name = f"processes under 5 % that launch {launch_ms} ms and {'are killed' if kill else 'exit'}"
            with proof.guard(name, "a rate"):
                options = ["--launch-ms", launch_ms, *(["--kill"] if kill else [])]
                loop = proof.limited(["--compute", "5%"], spin("deaths", rounds, *options, seconds=lasts(proof)))
                got, said = beside(proof, loop, tenant, native)
                lost = 100 - got
                if launch_ms == 0:
                    base = lost
                    proof.check(name, None, f"the other loses {lost:.1f} %, {said['deaths']} deaths", "what the processes cost without work")
                else:
                    more = lost - base
                    check(proof, name, more <= 5 + TOLERANCE_POINTS, f"the other loses {more:.1f} points more, {said['deaths']} deaths", "at most 5 and 2 points")


def check(proof, name, held, measured, wanted):
    """A share on the simulated GPU beside a busy host says little."""
    proof.check(name, None if proof.fake else bool(held), measured, wanted)


def lasts(proof):
    """How long the hostile program runs: it begins before and ends after what is measured."""
    return proof.settings.settle + proof.settings.seconds + 2


def spin(how, rounds=1, *options, seconds=1):
    return watched.program("spin.py", how, "--rounds", rounds, "--seconds", seconds, *options)


def beside(proof, hostile, tenant, native, daemon_socket=None):
    """What a tenant gets, in percent of it alone, beside a hostile program; what that one said at its end.

    The tenant has a share of 50 % under the daemon, and no limit without one.
    """
    fair = proof.limited(["--compute", "50%"], tenant, daemon=daemon_socket) if daemon_socket else tenant
    with steered.running(proof, [(fair, None)]) as programs:
        other = proof.start(hostile)
        try:
            [rate] = steered.rates(proof, programs, proof.settings.settle, proof.settings.seconds)
            out, err = other.communicate(timeout=min(20 + lasts(proof), proof.left()))
        except subprocess.TimeoutExpired:
            raise StepFailed("the hostile program did not end") from None
        finally:
            kill_group(other)
            other.wait()
    proof.log(f"  hostile: {out.strip()[-500:]} {err.strip()[-1500:]}")
    said = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if not said:
        raise StepFailed(f"the hostile program said nothing: {err.strip()[-200:]}")
    proof.data["hostile"][" ".join(map(str, hostile[-8:]))] = {"rate": rate, "native": native["rate"], "said": said[-1]}
    return 100 * rate / native["rate"], said[-1]
