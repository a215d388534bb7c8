"""The headers of the pinned jaxlib, which builds beside each other may want at once."""

from __future__ import annotations

import concurrent.futures
import pathlib
import shutil
import subprocess
import threading
import zipfile

import pytest

from tools import ffi_headers

HEADERS = ["xla/ffi/api/ffi.h", "xla/ffi/api/api.h", "xla/ffi/api/c_api.h"]


def _download(command, **_):
    wheel = pathlib.Path(command[command.index("-d") + 1]) / "jaxlib-1.2-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in [*HEADERS, "xla/other.h"]:
            archive.writestr(ffi_headers.PREFIX + name, f"// {name}")


def test_half_a_folder_is_made_anew(tmp_path, monkeypatch):
    folder = tmp_path / "jaxlib-1.2"
    half = folder / "xla/ffi/api/api.h"
    half.parent.mkdir(parents=True)
    half.write_text("// half")
    monkeypatch.setattr(subprocess, "run", _download)
    ffi_headers.unpack("1.2", folder)
    assert half.read_text() == "// xla/ffi/api/api.h"
    assert sorted(str(each.relative_to(folder)) for each in folder.rglob("*.h")) == sorted(HEADERS)


@pytest.mark.parametrize("half", [False, True])
def test_a_folder_of_headers_is_complete_from_when_it_is_there(tmp_path, monkeypatch, half):
    folder, both = tmp_path / "headers" / "jaxlib-1.2", threading.Barrier(2)
    if half:
        folder.mkdir(parents=True)
    read, seen = zipfile.ZipFile.read, []

    def read_and_look(archive, name):
        both.wait(20)
        seen.append(folder.exists() and any(folder.iterdir()) and not all((folder / each).exists() for each in HEADERS))
        both.wait(20)
        return read(archive, name)

    removed, twice, rmtree = [], threading.Event(), shutil.rmtree

    def remove(path, *args, **kwargs):
        if path == folder:
            removed.append(path)
            if len(removed) == 1:
                twice.wait(1)  # time for the other build to remove what this one has made, or is about to make
            else:
                twice.set()
        rmtree(path, *args, **kwargs)

    monkeypatch.setattr(subprocess, "run", _download)
    monkeypatch.setattr(zipfile.ZipFile, "read", read_and_look)
    monkeypatch.setattr(shutil, "rmtree", remove)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for made in [pool.submit(ffi_headers.unpack, "1.2", folder) for _ in range(2)]:
            made.result(60)
    assert seen == [False] * 6
    assert removed == [folder]
    assert sorted(str(each.relative_to(folder)) for each in folder.rglob("*.h")) == sorted(HEADERS)
    assert sorted(each.name for each in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]
