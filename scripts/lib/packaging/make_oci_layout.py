#!/usr/bin/env python3
"""Writes an OCI image layout (a folder) without a daemon: glibc and the program in two layers, nothing else inside.

    make_oci_layout.py --program-root FOLDER --version 0.1.0 --out FOLDER

The first layer holds the shared objects of this machine's package libc6 that the program can ask for, the second what
FOLDER holds. Runs as a user of its own, with a health check. Every time is SOURCE_DATE_EPOCH: the same input gives the
same bytes. `skopeo copy oci:FOLDER docker-daemon:warpweave:0.1.0` and its like take it from there.
"""
import argparse
import datetime
import gzip
import hashlib
import io
import json
import os
import pathlib
import platform
import subprocess
import tarfile

EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
USER = 65532
GLIBC = ("ld-linux-", "libc.so.", "libm.so.", "libpthread.so.", "libdl.so.", "librt.so.", "libresolv.so.", "libnss_")
FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\nwarpweave:x:{USER}:{USER}:warpweave:/tmp:/sbin/nologin\n",
    "etc/group": f"root:x:0:\nwarpweave:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}


class Layer:
    """A tar archive whose bytes depend on its content alone."""

    def __init__(self):
        self.buffer = io.BytesIO()
        self.tar = tarfile.open(fileobj=self.buffer, mode="w", format=tarfile.GNU_FORMAT)
        self.folders = set()

    def entry(self, name, kind, mode, data=b"", target=""):
        for parent in reversed(pathlib.PurePosixPath(name).parents):
            if str(parent) != "." and str(parent) not in self.folders:
                self.folder(str(parent))
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime, info.size, info.linkname = kind, mode, EPOCH, len(data), target
        self.tar.addfile(info, io.BytesIO(data))

    def folder(self, name, mode=0o755):
        self.folders.add(name)
        info = tarfile.TarInfo(name)
        info.type, info.mode, info.mtime = tarfile.DIRTYPE, mode, EPOCH
        self.tar.addfile(info)

    def file(self, name, data, mode=0o644):
        self.entry(name, tarfile.REGTYPE, mode, data)

    def link(self, name, target):
        self.entry(name, tarfile.SYMTYPE, 0o777, target=target)

    def bytes(self):
        self.tar.close()
        return self.buffer.getvalue()


def glibc_layer():
    layer = Layer()
    listed = subprocess.run(["dpkg", "-L", "libc6"], check=True, capture_output=True, text=True).stdout.split("\n")
    for path in sorted(listed):
        if not os.path.basename(path).startswith(GLIBC) or "/gconv/" in path or "/share/" in path:
            continue
        if os.path.islink(path):
            layer.link(path.lstrip("/"), os.readlink(path))
        elif os.path.isfile(path):
            layer.file(path.lstrip("/"), pathlib.Path(path).read_bytes(), 0o755)
    for name, text in FILES.items():
        layer.file(name, text.encode())
    copyright_file = pathlib.Path("/usr/share/doc/libc6/copyright")
    if copyright_file.exists():
        layer.file("usr/share/doc/libc6/copyright", copyright_file.read_bytes())
    layer.folder("tmp", 0o1777)
    layer.folder("models")
    return layer.bytes()


def program_layer(root):
    layer = Layer()
    for path in sorted(pathlib.Path(root).rglob("*")):
        if path.is_file():
            layer.file(str(path.relative_to(root)), path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644)
    return layer.bytes()


class Layout:
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        (self.folder / "blobs" / "sha256").mkdir(parents=True)

    def blob(self, data, media_type):
        digest = hashlib.sha256(data).hexdigest()
        (self.folder / "blobs" / "sha256" / digest).write_bytes(data)
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(data)}

    def json_file(self, name, value):
        (self.folder / name).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n")


def image_config(version, created, layers):
    return {
        "created": created,
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()],
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/bin", "HOME=/tmp", "WARPWEAVE_MODELS=/models", "NVIDIA_VISIBLE_DEVICES=all",
                    "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
            "Entrypoint": ["/usr/bin/warpweave"],
            "Cmd": ["serve", "--host", "0.0.0.0"],
            "ExposedPorts": {"30000/tcp": {}},
            "WorkingDir": "/models",
            "StopSignal": "SIGTERM",
            # Nanoseconds. A large model takes minutes to load.
            "Healthcheck": {"Test": ["CMD", "/usr/bin/warpweave", "health"], "Interval": 10 * 10**9, "Timeout": 6 * 10**9,
                            "StartPeriod": 600 * 10**9, "Retries": 3},
            "Labels": {"org.opencontainers.image.title": "warpweave", "org.opencontainers.image.version": version,
                       "org.opencontainers.image.licenses": "Apache-2.0"},
        },
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]},
        "history": [{"created": created, "created_by": "glibc"}, {"created": created, "created_by": "warpweave"}],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program-root", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", required=True)
    args = parser.parse_args()

    created = datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    layers = [glibc_layer(), program_layer(args.program_root)]
    layout = Layout(args.out)
    encoded = json.dumps(image_config(args.version, created, layers), sort_keys=True).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": layout.blob(encoded, "config.v1+json"),
        "layers": [layout.blob(gzip.compress(layer, mtime=0), "layer.v1.tar+gzip") for layer in layers],
    }
    index_entry = layout.blob(json.dumps(manifest, sort_keys=True).encode(), "manifest.v1+json")
    index_entry["annotations"] = {"org.opencontainers.image.ref.name": args.version}
    layout.json_file("oci-layout", {"imageLayoutVersion": "1.0.0"})
    layout.json_file("index.json", {"schemaVersion": 2, "manifests": [index_entry]})


if __name__ == "__main__":
    main()
