"""Installs the wheels whose pieces lie beside this file, without a network.

    python3 install.py --store STORE            takes the pieces that are here into STORE, checked, and says which are missing
    python3 install.py [--store STORE] --target SITE [--unpack]

The second joins the pieces (of STORE, or beside this file), checks every hash, and installs into SITE: by pip, or by unpacking where there is no
pip (--unpack: in any case). Put SITE on PYTHONPATH then. It installs all or nothing. Needs Python 3.9 and nothing else.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CHUNK = 1 << 20


class Refused(Exception):
    """One sentence."""


def manifest_of(folder: Path) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    except (OSError, ValueError) as error:
        raise Refused(f"{folder / 'manifest.json'} cannot be read: {error}") from None
    if read.get("format") != "lpq-wheels-1":
        raise Refused(f"{folder / 'manifest.json'} is of format {read.get('format')}, and this program reads lpq-wheels-1")
    return read


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def require_piece(path: Path, piece: dict[str, Any]) -> None:
    size = path.stat().st_size
    if size != piece["bytes"]:
        raise Refused(f"{path} has {size} bytes, and the manifest says {piece['bytes']}: copy it again")
    if sha256(path) != piece["sha256"]:
        raise Refused(f"{path} is damaged: its SHA-256 is not the manifest's: copy it again")


def require_known(folder: Path, manifest: dict[str, Any]) -> None:
    known = {piece["name"] for piece in manifest["pieces"]}
    for path in sorted(folder.glob("piece-*")):
        if path.name not in known:
            raise Refused(f"{path} is no piece of this manifest, which has {len(known)}: it is of other wheels, remove it")


def take(manifest: dict[str, Any], store: Path) -> None:
    """Copies pieces that are here into `store`."""
    require_known(HERE, manifest)
    store.mkdir(parents=True, exist_ok=True)
    kept = store / "manifest.json"
    if kept.exists() and manifest_of(store) != manifest:
        raise Refused(f"{store} holds pieces of other wheels: name another folder")
    if store.resolve() != HERE.resolve():
        shutil.copyfile(HERE / "manifest.json", kept)
    for piece in manifest["pieces"]:
        path = HERE / piece["name"]
        if path.exists():
            require_piece(path, piece)
            partial = store / f".{piece['name']}"
            shutil.copyfile(path, partial)
            os.replace(partial, store / piece["name"])
    missing = [piece["name"] for piece in manifest["pieces"] if not (store / piece["name"]).exists()]
    there = len(manifest["pieces"]) - len(missing)
    print(f"{there} of {len(manifest['pieces'])} pieces are in {store}" + (f"; missing: {', '.join(missing)}" if missing else ""))


class Joined(io.RawIOBase):
    """The pieces as one file, hashed as it is read."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths, self.file, self.digest = list(paths), None, hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self.file is None:
                if not self.paths:
                    return 0
                self.file = self.paths.pop(0).open("rb")
            count = self.file.readinto(buffer)
            if count:
                self.digest.update(memoryview(buffer)[:count])
                return int(count)
            self.file.close()
            self.file = None


def wheels(manifest: dict[str, Any], folder: Path, work: Path) -> list[Path]:
    """The wheels, unpacked from the joined pieces into `work`."""
    require_known(folder, manifest)
    paths = [folder / piece["name"] for piece in manifest["pieces"]]
    missing = [path.name for path in paths if not path.exists()]
    if missing:
        raise Refused(f"{folder} lacks {', '.join(missing)} of {len(paths)} pieces: copy it there")
    for path, piece in zip(paths, manifest["pieces"]):
        require_piece(path, piece)
    joined = Joined(paths)
    expected = [wheel["file"] for wheel in manifest["wheels"]]
    found = []
    try:
        with io.BufferedReader(joined, CHUNK) as source, lzma.open(source) as plain, tarfile.open(fileobj=plain, mode="r|") as archive:
            for member in archive:
                if member.name not in expected or not member.isfile():
                    raise Refused(f"the archive holds '{member.name}', which the manifest does not name")
                content = archive.extractfile(member)
                assert content is not None
                with (work / member.name).open("wb") as file:
                    shutil.copyfileobj(content, file, CHUNK)
                found.append(member.name)
            while plain.read(CHUNK):
                pass
            while source.read(CHUNK):
                pass
    except (lzma.LZMAError, tarfile.TarError, EOFError) as error:
        raise Refused(f"the joined pieces do not unpack: {error}") from None
    if joined.digest.hexdigest() != manifest["sha256"]:
        raise Refused("the joined pieces are not the manifest's archive: its SHA-256 differs")
    if found != expected:
        raise Refused(f"the archive holds {len(found)} wheels, and the manifest names {len(expected)}")
    return [work / name for name in found]


def require_record(wheel: Path) -> None:
    """Raises Refused unless a wheel holds exactly the files of its RECORD."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = next((name for name in names if name.endswith(".dist-info/RECORD") and name.count("/") == 1), None)
        if record is None:
            raise Refused(f"{wheel.name} has no RECORD")
        rows = {row[0]: row[1] for row in csv.reader(io.StringIO(archive.read(record).decode())) if row}
        if set(rows) != set(names):
            odd = sorted(set(rows) ^ set(names))[0]
            raise Refused(f"{wheel.name} and its RECORD differ in '{odd}'")
        for name, said in rows.items():
            if name == record:
                continue
            kind, _, value = said.partition("=")
            if base64.urlsafe_b64encode(hashlib.new(kind, archive.read(name)).digest()).rstrip(b"=").decode() != value:
                raise Refused(f"'{name}' of {wheel.name} is not what its RECORD says")


def unpack(wheel: Path, site: Path) -> None:
    """What a wheel holds, where pip --target puts it: `NAME.data/purelib` and `platlib` belong to the root, scripts to bin."""
    places = {"purelib": site, "platlib": site, "scripts": site / "bin", "data": site, "headers": site / "include"}
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            first, _, rest = entry.filename.partition("/")
            to = site / entry.filename
            if first.endswith(".data") and "/" in rest:
                kind, _, name = rest.partition("/")
                to = places[kind] / name
            to.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(entry) as source, to.open("wb") as file:
                shutil.copyfileobj(source, file, CHUNK)
            mode = entry.external_attr >> 16
            if mode & 0o111:
                to.chmod(0o755)


def has_pip() -> bool:
    return subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True).returncode == 0


def install(manifest: dict[str, Any], folder: Path, site: Path, by_hand: bool) -> None:
    if site.exists() and any(site.iterdir()):
        raise Refused(f"{site} is not empty: name another folder")
    own = ".".join(map(str, sys.version_info[:2]))
    if own != manifest["python"]:
        raise Refused(f"these wheels are for Python {manifest['python']}, and this is {own}: run it with that one")
    site.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=site.parent, prefix=".wheels-") as made:
        work, new = Path(made) / "wheels", Path(made) / "site"
        work.mkdir()
        new.mkdir()
        found = wheels(manifest, folder, work)
        for wheel in found:
            require_record(wheel)
        if by_hand or not has_pip():
            for wheel in found:
                unpack(wheel, new)
        else:
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--disable-pip-version-check"]
            ran = subprocess.run([*pip, "--target", str(new), *map(str, found)], capture_output=True, text=True)
            if ran.returncode != 0:
                raise Refused(f"pip failed: {(ran.stderr or ran.stdout).strip().splitlines()[-1]}")
        if site.exists():
            site.rmdir()
        os.replace(new, site)
    print(f"{len(found)} wheels are in {site}: export PYTHONPATH={site}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--store", type=Path)
    options.add_argument("--target", type=Path)
    options.add_argument("--unpack", action="store_true")
    chosen = options.parse_args()
    if chosen.store is None and chosen.target is None:
        options.error("--store, --target or both are needed")
    manifest = manifest_of(HERE)
    if chosen.store is not None:
        take(manifest, chosen.store)
    if chosen.target is not None:
        install(manifest, chosen.store or HERE, chosen.target.absolute(), chosen.unpack)


if __name__ == "__main__":
    try:
        main()
    except Refused as error:
        sys.exit(f"install.py: {error}")
