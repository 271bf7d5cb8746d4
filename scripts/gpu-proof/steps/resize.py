"""The limit is changed while the program runs: its next allocation knows."""

from steps import watched

CHUNK_MIB = 128


def run(proof):
    rows = proof.data["resize"] = []
    for library in watched.libraries(proof):
        name = {"driver": "sluice limit, cuMemAlloc", "torch": "sluice limit, PyTorch"}[library]
        with proof.guard(name, "seen by the next allocation"):
            change(proof, rows, name, library)


def change(proof, rows, name, library):
    command = proof.limited(["--mem", "2GiB"], watched.program("resize.py", "--with", library))
    with watched.Watched(proof, command) as program:
        full = program.hear(40)
        program.resize("3GiB")
        program.go_on()
        grown = program.hear(20)
        program.resize("1GiB")
        over = program.device()["memory"]
        program.go_on()
        shrunk = program.hear(20)
        program.go_on()
        afterwards = program.hear(20)["afterwards"]
    rows.append({"library": library, "full": full, "grown": grown, "over": over, "shrunk": shrunk})
    more = grown["chunks"] - full["chunks"]
    seen = grown["first"] and abs(more * CHUNK_MIB - 1024) <= CHUNK_MIB and grown["total"] == 3 << 30
    proof.check(f"{name}: 2 GiB grown to 3 GiB", seen, f"{more * CHUNK_MIB} MiB more, {grown['total'] >> 20} MiB shown", "1024 MiB more but for a chunk, at once")
    refused = shrunk["refused"] and shrunk["works"] and shrunk["free"] == 0 and over["growth_refused"]
    text = f"refused {shrunk['refused']}, memory works {shrunk['works']}, {over['over'] >> 20} MiB over in status"
    proof.check(f"{name}: shrunk to 1 GiB", refused, text, "growth refused, nothing killed, said in status")
    proof.check(f"{name}: below it again", afterwards, "an allocation succeeds" if afterwards else "refused", "an allocation succeeds")
