"""Checks that a bill of materials is of CycloneDX's format, and of what is shipped alone.

Usage: check-sbom.py SBOM, with cyclonedx-python-lib
"""

import json
import sys
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = Path(sys.argv[1]).read_text()
validator = JsonStrictValidator(SchemaVersion.V1_5)
if validator.validate_str("{}") is None:
    sys.exit("check-sbom.py: the validator refuses nothing")
if error := validator.validate_str(text):
    sys.exit(f"check-sbom.py: {error}")
components = json.loads(text)["components"]
names = {one["name"] for one in components}
if missing := {"cuda-limiter", "detour", "libc", "poem", "ratatui"} - names:
    sys.exit(f"check-sbom.py: {missing} are shipped and not named")
if too_many := names & {"proptest", "rusty-fork", "vt100"}:
    sys.exit(f"check-sbom.py: {too_many} are of tests")
if without := [one["name"] for one in components if not one["licenses"][0]["expression"]]:
    sys.exit(f"check-sbom.py: {without} have no licence")
print(len(components), "crates")
