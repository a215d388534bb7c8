"""Text to learn from: the source of Python's standard library, which every machine with Python has."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np

HELD_OUT_EVERY = 20  # every twentieth file is kept for evaluation
SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__"}


def _source_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.py"), key=lambda p: p.relative_to(root).as_posix()):
        if not SKIPPED.intersection(path.relative_to(root).parts):
            yield path


class Corpus:
    """Bytes of the standard library, `train` and `held_out`, split by file."""

    def __init__(self, limit_bytes: int = 8 << 20) -> None:
        parts: tuple[list[bytes], list[bytes]] = ([], [])
        size = 0
        for index, path in enumerate(_source_files(Path(sysconfig.get_paths()["stdlib"]))):
            text = path.read_bytes()
            parts[index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1].append(text)
            size += len(text)
            if size >= limit_bytes:
                break
        self.files = len(parts[0]) + len(parts[1])
        self.train, self.held_out = (np.frombuffer(b"\n".join(p), dtype=np.uint8) for p in parts)

    def batch(self, step: int, *, seed: int, rows: int, length: int) -> np.ndarray:
        """The same (rows, length + 1) bytes for the same (seed, step), on every process."""
        return _windows(self.train, np.random.default_rng((seed, step)), rows, length)

    def held_out_batch(self, *, rows: int, length: int) -> np.ndarray:
        return _windows(self.held_out, np.random.default_rng(0), rows, length)


def _windows(text: np.ndarray, rng: np.random.Generator, rows: int, length: int) -> np.ndarray:
    starts = rng.integers(0, len(text) - length - 1, size=rows)
    return text[starts[:, None] + np.arange(length + 1)]
