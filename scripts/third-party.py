"""Writes what the shipped programs and libraries are made of.

Usage: third-party.py TARGET SBOM LICENCES

SBOM is a bill of materials for TARGET (as x86_64-unknown-linux-gnu) in CycloneDX's JSON; LICENCES has the texts that the
crates come with. Both go by `cargo metadata` and Cargo.lock, and are as old as SOURCE_DATE_EPOCH. Crates that only build
or test are left out.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

# The packages that `cargo xtask build-release` builds.
SHIPPED = {"cuda-limiter", "add-path", "hypervisor", "sluice", "fake-cuda", "fake-nvml", "fake-smi", "tenant"}
TEXT = re.compile(r"(?i)^(licen[cs]e|copying|copyright|notice|unlicense)([-._].*)?$")


def used(metadata):
    """The ids of the packages that the shipped ones are made of, each with those that it uses."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    names = {package["id"]: package["name"] for package in metadata["packages"]}
    waiting = [member for member in metadata["workspace_members"] if names[member] in SHIPPED]
    if len(waiting) != len(SHIPPED):
        sys.exit("third-party.py: a package that is shipped is not in the workspace")
    found = {}
    while waiting:
        package = waiting.pop()
        if package not in found:
            uses = [one["pkg"] for one in nodes[package]["deps"] if any(kind["kind"] is None for kind in one["dep_kinds"])]
            found[package] = sorted(set(uses))
            waiting.extend(uses)
    return found


def purl(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def licence(package):
    # The old form of "or".
    return re.sub(r" ?/ ?", " OR ", package["license"] or "")


def sbom(packages, uses, sums, version, epoch):
    def component(package):
        told = {"type": "library", "bom-ref": purl(package), "name": package["name"], "version": package["version"]}
        told |= {"purl": purl(package), "licenses": [{"expression": licence(package)}]}
        checksum = sums.get((package["name"], package["version"]))
        return told | ({"hashes": [{"alg": "SHA-256", "content": checksum}]} if checksum else {})

    chosen = sorted((packages[one] for one in uses), key=purl)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch)),
            "component": {"type": "application", "bom-ref": "sluice", "name": "sluice", "version": version},
        },
        "components": [component(package) for package in chosen],
        "dependencies": [{"ref": "sluice", "dependsOn": sorted(purl(one) for one in chosen if one["name"] in SHIPPED)}]
        + [
            {"ref": purl(package), "dependsOn": sorted(purl(packages[one]) for one in uses[package["id"]])}
            for package in chosen
        ],
    }


def licences(packages, uses):
    crates = sorted((packages[one] for one in uses if packages[one]["source"]), key=purl)
    lines = ["What Sluice is made of beside its own code and the standard library of Rust, which is MIT OR Apache-2.0.", ""]
    lines += [f"{crate['name']} {crate['version']}: {licence(crate)}" for crate in crates]
    texts = defaultdict(list)
    for crate in crates:
        for path in sorted(Path(crate["manifest_path"]).parent.iterdir()):
            if path.is_file() and TEXT.match(path.name):
                texts[path.read_text(errors="replace").strip()].append(f"{crate['name']} {crate['version']} ({path.name})")
    for text, of in sorted(texts.items(), key=lambda item: item[1]):
        lines += ["", "=" * 80, *of, "=" * 80, "", text]
    return "\n".join(lines) + "\n"


def main(target, to_sbom, to_licences):
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    packages = {package["id"]: package for package in metadata["packages"]}
    locked = re.findall(r'name = "(.+)"\nversion = "(.+)"\nsource = .+\nchecksum = "(.+)"', Path("Cargo.lock").read_text())
    sums = {(name, version): checksum for name, version, checksum in locked}
    version = next(one["version"] for one in metadata["packages"] if one["name"] == "sluice")
    uses = used(metadata)
    bill = sbom(packages, uses, sums, version, epoch)
    Path(to_sbom).write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n")
    Path(to_licences).write_text(licences(packages, uses))


if len(sys.argv) != 4:
    sys.exit(__doc__)
main(*sys.argv[1:])
