"""Writes a container image in the layout of the OCI as one archive, without a container engine.

Usage: oci-image.py ROOT IMAGE ARCHITECTURE NAME EPOCH LABEL=VALUE...

ROOT is the image's file system: one layer. Everything in the image is as old as EPOCH, belongs to root and is in the
order of its names, so that the same files make the same image.
"""

import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import time
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def digest(data):
    return "sha256:" + hashlib.sha256(data).hexdigest()


def as_json(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


class Archive:
    """An archive in memory, whose entries tell nothing of who made it and when."""

    def __init__(self, epoch):
        self.epoch = epoch
        self.bytes = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.bytes, mode="w", format=tarfile.GNU_FORMAT)

    def add(self, name, data=b"", **fields):
        entry = tarfile.TarInfo(name)
        entry.mtime, entry.mode, entry.size = self.epoch, 0o644, len(data)
        for field, value in fields.items():
            setattr(entry, field, value)
        self.tar.addfile(entry, io.BytesIO(data))

    def done(self):
        self.tar.close()
        return self.bytes.getvalue()


def layer_of(root, epoch):
    layer = Archive(epoch)
    for path in sorted(root.rglob("*"), key=lambda path: os.fsencode(path.relative_to(root))):
        name, mode = str(path.relative_to(root)), path.lstat().st_mode & 0o7777
        if path.is_symlink():
            layer.add(name, type=tarfile.SYMTYPE, linkname=os.readlink(path), mode=0o777)
        elif path.is_dir():
            layer.add(name, type=tarfile.DIRTYPE, mode=mode)
        elif path.is_file():
            layer.add(name, path.read_bytes(), mode=mode)
        else:
            sys.exit(f"oci-image.py: {path} is no file, folder or link")
    return layer.done()


def main(root, image, architecture, name, epoch, *labels):
    epoch = int(epoch)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))
    labels = dict(label.split("=", 1) for label in labels) | {"org.opencontainers.image.created": created}
    plain = layer_of(Path(root), epoch)
    layer = gzip.compress(plain, compresslevel=9, mtime=0)
    config = as_json(
        {
            "architecture": architecture,
            "os": "linux",
            "created": created,
            "config": {
                "Entrypoint": ["/usr/bin/hypervisor"],
                "Cmd": ["daemon"],
                "Env": ["PATH=/usr/bin", "NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility"],
                "Labels": labels,
                "StopSignal": "SIGTERM",
            },
            "rootfs": {"type": "layers", "diff_ids": [digest(plain)]},
            "history": [{"created": created, "created_by": "cargo xtask package"}],
        }
    )
    descriptor = lambda kind, data: {"mediaType": kind, "digest": digest(data), "size": len(data)}
    manifest = as_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor(CONFIG, config),
            "layers": [descriptor(LAYER, layer)],
            "annotations": labels,
        }
    )
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            descriptor(MANIFEST, manifest)
            | {
                "platform": {"architecture": architecture, "os": "linux"},
                "annotations": {"org.opencontainers.image.ref.name": name},
            }
        ],
    }
    archive = Archive(epoch)
    archive.add("oci-layout", as_json({"imageLayoutVersion": "1.0.0"}))
    archive.add("index.json", as_json(index))
    for folder in ("blobs", "blobs/sha256"):
        archive.add(folder, type=tarfile.DIRTYPE, mode=0o755)
    for blob in sorted((config, layer, manifest), key=digest):
        archive.add("blobs/sha256/" + digest(blob).removeprefix("sha256:"), blob)
    Path(image).write_bytes(archive.done())


if len(sys.argv) < 6 or not all("=" in label for label in sys.argv[6:]):
    sys.exit(__doc__)
main(*sys.argv[1:])
