"""Checks that a wheel is what pip and an index accept: its name, tags, metadata, modes and RECORD.

Usage: check-wheel.py WHEEL
"""

import base64
import csv
import email
import hashlib
import sys
import zipfile
from itertools import product
from pathlib import Path

NEEDED = ["Name", "Version", "Summary", "Maintainer-email", "License-Expression", "Project-URL", "Requires-Python"]


def main(path):
    name, version, *tags = Path(path).stem.split("-")
    start, wheel = f"{name}-{version}", zipfile.ZipFile(path)
    info = f"{start}.dist-info"
    metadata, of_wheel = (email.message_from_bytes(wheel.read(f"{info}/{one}")) for one in ("METADATA", "WHEEL"))
    assert (metadata["Name"], metadata["Version"]) == (name, version), "the file's name is another package's"
    expanded = {"-".join(tag) for tag in product(*(part.split(".") for part in tags))}
    assert set(of_wheel.get_all("Tag")) == expanded, "the file's name has other tags than WHEEL"
    assert not (lacking := [field for field in NEEDED if not metadata[field]]), f"METADATA lacks {lacking}"
    assert len(metadata.get_payload()) > 1000, "METADATA lacks the description"
    for licence in metadata.get_all("License-File"):
        assert wheel.read(f"{info}/licenses/{licence}"), licence

    rows = {row[0]: row[1:] for row in csv.reader(wheel.read(f"{info}/RECORD").decode().splitlines())}
    assert sorted(rows) == sorted(wheel.namelist()), "RECORD names other files than there are"
    assert rows.pop(f"{info}/RECORD") == ["", ""], "RECORD has its own digest"
    for file, row in rows.items():
        data = wheel.read(file)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert row == [f"sha256={digest}", str(len(data))], f"RECORD is wrong about {file}"
        mode, is_program = wheel.getinfo(file).external_attr >> 16, data.startswith(b"\x7fELF")
        assert mode == (0o100755 if is_program else 0o100644), f"{file} has the mode {mode:o}"
    assert len({entry.date_time for entry in wheel.infolist()}) == 1, "the entries differ in age"
    print(f"{Path(path).stat().st_size} bytes, {len(rows)} files")


if len(sys.argv) != 2:
    sys.exit(__doc__)
main(sys.argv[1])
