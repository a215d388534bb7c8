"""The labels of records: the JSON that says what plan an operation was run by (`jaxring.runtime.explain`)."""

from __future__ import annotations

import json
from typing import Any

from jaxring.plan.collectives import COLLECTIVES


def parse(label: str) -> dict[str, Any]:
    """A label's content, {} where it has none or is malformed: a flight record may come from anywhere."""
    try:
        found = json.loads(label)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def synchronises(label: str) -> bool:
    """Whether every rank waits for all others in an operation of this label, so that lateness is seen in it."""
    collective = COLLECTIVES.get(str(parse(label).get("collective")))
    return collective is not None and collective.needs_all
