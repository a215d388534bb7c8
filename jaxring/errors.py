"""The errors jaxring raises from Python. What fails inside a running computation arrives as a JaxRuntimeError."""

from __future__ import annotations


class JaxringError(Exception):
    """The base of every error below; its text is a sentence that says what to do."""


class SettingsError(JaxringError, ValueError):
    """A JAXRING_* variable that is unknown or has a value that cannot be used."""


class JoinError(JaxringError, RuntimeError):
    """Processes of one job could not find, trust or reach each other."""


class MemoryLimitError(JaxringError, MemoryError):
    """Memory that this process needs could not be obtained."""


class PlanError(JaxringError, ValueError):
    """A schedule that cannot be made, or does not do what it claims."""


class ReplicatedOperandWarning(UserWarning):
    """A sum, mean or product over ranks of a value that is the same on all of them: see `jaxring.data_parallel`."""
