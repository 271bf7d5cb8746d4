"""Checks an image in the layout of the OCI, and unpacks its file system.

Usage: check-image.py IMAGE ROOT
"""

import gzip
import hashlib
import io
import json
import sys
import tarfile


def wrong(what):
    sys.exit(f"check-image.py: {what}")


def main(image, root):
    with tarfile.open(image) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive if entry.isfile()}
    seen = {"oci-layout", "index.json"}

    def blob(descriptor, kind):
        if descriptor["mediaType"] != kind:
            wrong(f"{descriptor['mediaType']} instead of {kind}")
        algorithm, value = descriptor["digest"].split(":")
        name = f"blobs/{algorithm}/{value}"
        data = files.get(name) or wrong(f"{name} is missing")
        if hashlib.new(algorithm, data).hexdigest() != value or len(data) != descriptor["size"]:
            wrong(f"{name} is not what it is named after")
        seen.add(name)
        return data

    if json.loads(files["oci-layout"]) != {"imageLayoutVersion": "1.0.0"}:
        wrong("oci-layout is of another version")
    index = json.loads(files["index.json"])
    (entry,) = index["manifests"]
    manifest = json.loads(blob(entry, "application/vnd.oci.image.manifest.v1+json"))
    config = json.loads(blob(manifest["config"], "application/vnd.oci.image.config.v1+json"))
    layers = [gzip.decompress(blob(layer, "application/vnd.oci.image.layer.v1.tar+gzip")) for layer in manifest["layers"]]
    if index["schemaVersion"] != 2 or manifest["schemaVersion"] != 2:
        wrong("a schemaVersion is not 2")
    if config["rootfs"] != {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]}:
        wrong("diff_ids are not those of the layers")
    if (config["architecture"], config["os"]) != (entry["platform"]["architecture"], entry["platform"]["os"]):
        wrong("the index and the configuration tell of different machines")
    if set(files) != seen:
        wrong(f"nobody names {sorted(set(files) - seen)}")
    for layer in layers:
        with tarfile.open(fileobj=io.BytesIO(layer)) as archive:
            if any(entry.uid or entry.gid for entry in archive):
                wrong("something does not belong to root")
            archive.extractall(root)
    print(" ".join(config["config"]["Entrypoint"] + config["config"]["Cmd"]))


if len(sys.argv) != 3:
    sys.exit(__doc__)
main(*sys.argv[1:])
