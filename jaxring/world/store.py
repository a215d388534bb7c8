"""The key-value store through which the processes of a job find each other."""

from __future__ import annotations

import time
from typing import Any, Protocol

from jaxring import _compat
from jaxring.errors import JoinError

# A blocking get keeps the calling thread in native code, where Ctrl-C has no effect. So it is cut into slices.
SLICE_S = 1.0
# How long reading a value may take that another process has set.
_TAKEN_S = 2.0


class Store(Protocol):
    """The interface of a job's store. Every method raises JoinError."""

    def set(self, key: str, value: bytes) -> None:
        """Publish `value`; a key can be set once."""

    def get(self, key: str, timeout_s: float) -> bytes:
        """Waits at most `timeout_s` seconds until a process has set the value, and returns it."""

    def replace(self, key: str, value: bytes) -> None:
        """Publish `value`, in place of an earlier value if there is one."""

    def list(self, prefix: str) -> dict[str, bytes]:
        """The entries below `prefix`, which ends in a slash: the rest of each key, and its value."""

    def delete(self, folder: str) -> None:
        """Drop the entries below `folder`, which does not end in a slash."""


class JaxStore:
    """The key-value store of jax.distributed. Raises JoinError where jax.distributed is not initialised."""

    def __init__(self) -> None:
        state = _compat.distributed_state()
        if state is None:
            raise JoinError(
                "jax.distributed is not initialised: call jax.distributed.initialize() before the first collective "
                "across processes, or start the job with 'jaxring run'."
            )
        self._client: Any = state.client
        _compat.note_preemption_points()

    def set(self, key: str, value: bytes) -> None:
        try:
            self._client.key_value_set_bytes(key, value)
        except Exception as error:
            raise JoinError(f"Cannot publish {key} in jax.distributed's store: {_first_line(error)}.") from error

    def replace(self, key: str, value: bytes) -> None:
        try:
            self._client.key_value_set_bytes(key, value, allow_overwrite=True)
        except Exception as error:
            raise JoinError(f"Cannot publish {key} in jax.distributed's store: {_first_line(error)}.") from error

    def list(self, prefix: str) -> dict[str, bytes]:
        try:
            found = self._client.key_value_dir_get_bytes(prefix)
        except Exception as error:
            raise JoinError(f"Cannot read {prefix} from jax.distributed's store: {_first_line(error)}.") from error
        return {key.removeprefix(prefix): bytes(value) for key, value in found}

    def delete(self, folder: str) -> None:
        try:
            self._client.key_value_delete(folder)
        except Exception as error:
            raise JoinError(f"Cannot delete {folder} from jax.distributed's store: {_first_line(error)}.") from error

    def get(self, key: str, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s
        while True:
            left = deadline - time.monotonic()
            try:
                slice_ms = max(1, int(1000 * min(SLICE_S, left)))
                return bytes(self._client.blocking_key_value_get_bytes(key, slice_ms))
            except Exception as error:
                late = "DEADLINE_EXCEEDED" in str(error)
                if late and time.monotonic() < deadline:
                    continue
                reason = f"no process set it within {timeout_s:g} s" if late else _first_line(error)
                raise JoinError(f"Cannot read {key} from jax.distributed's store: {reason}.") from error


def propose(store: Store, key: str, value: bytes) -> bytes:
    """Set `key` to `value` unless another process has set it first. Returns the value that all processes read."""
    try:
        store.set(key, value)
    except JoinError:
        # Either the key is taken or the store is lost, in which case reading raises.
        return store.get(key, _TAKEN_S)
    return value


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
