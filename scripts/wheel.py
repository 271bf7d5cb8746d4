"""Packs a folder into a Python wheel, and writes the wheel's RECORD.

Usage: wheel.py FOLDER WHEEL EPOCH

Entries are in the order of their names, the metadata behind everything else, and as old as EPOCH, so that the same files
make the same wheel.
"""

import base64
import hashlib
import sys
import time
import zipfile
from pathlib import Path


def main(folder, wheel, epoch):
    folder = Path(folder)
    (info,) = folder.glob("*.dist-info")
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    record = f"{info.name}/RECORD"
    lines = []
    with zipfile.ZipFile(wheel, "w") as archive:

        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, time.gmtime(int(epoch))[:6])
            entry.create_system, entry.external_attr = 3, (0o100000 | mode) << 16
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED, 9)

        for name in sorted(files, key=lambda name: (name.startswith(info.name), name)):
            data = files[name].read_bytes()
            add(name, data, 0o755 if files[name].stat().st_mode & 0o100 else 0o644)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        add(record, "".join([*lines, f"{record},,\n"]), 0o644)


if len(sys.argv) != 4:
    sys.exit(__doc__)
main(*sys.argv[1:])
