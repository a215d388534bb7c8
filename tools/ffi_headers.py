"""Print the folder of the XLA FFI headers that jaxring builds against.

They come from the jaxlib pinned in pyproject.toml's build requirements. Where this environment has that version, its
own folder is printed; otherwise the headers (and nothing else) are taken from the pinned wheel into CACHE.

usage: python tools/ffi_headers.py CACHE
"""

import fcntl
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

PREFIX = "jaxlib/include/"
MAIN = "xla/ffi/api/ffi.h"


def pinned_version() -> str:
    pyproject = Path(__file__).parent.parent / "pyproject.toml"
    for requirement in tomllib.loads(pyproject.read_text())["build-system"]["requires"]:
        if match := re.fullmatch(r"jaxlib==([\w.]+)", requirement):
            return match[1]
    raise SystemExit("pyproject.toml pins no jaxlib in build-system.requires: add jaxlib==VERSION")


def unpack(version: str, folder: Path) -> None:
    """Makes the folder, which is complete from when it is there: builds beside each other may want it at once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as download, tempfile.TemporaryDirectory(dir=folder.parent) as beside:
        made = Path(beside) / folder.name
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", download]
        subprocess.run([*command, "--disable-pip-version-check", f"jaxlib=={version}"], check=True, stdout=sys.stderr)
        (wheel,) = Path(download).glob("jaxlib-*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith(PREFIX + "xla/ffi/"):
                    target = made / name.removeprefix(PREFIX)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
        with (folder.parent / f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (folder / MAIN).exists():
                return  # another build was first
            shutil.rmtree(folder, ignore_errors=True)  # half of it, by a build that was ended
            made.rename(folder)


def main() -> None:
    version = pinned_version()
    if metadata.version("jaxlib") == version:
        print(Path(str(metadata.distribution("jaxlib").locate_file("jaxlib"))) / "include")
        return
    folder = Path(sys.argv[1]).resolve() / f"jaxlib-{version}"
    if not (folder / MAIN).exists():
        unpack(version, folder)
    print(folder)


if __name__ == "__main__":
    main()
