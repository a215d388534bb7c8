"""Makes the helpers importable: the workers, which are processes of their own, use them too."""

from __future__ import annotations

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
