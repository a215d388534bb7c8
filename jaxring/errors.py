"""The errors jaxring raises from Python. What fails inside a running computation arrives as a JaxRuntimeError.

docs/reference/errors.md says of each class when it is raised and what to do then.
"""

from __future__ import annotations


class JaxringError(Exception):
    """The base of every error below, and raised for a call that is not possible now.

    Its text is a sentence that says what to do.
    """


class SettingsError(JaxringError, ValueError):
    """A JAXRING_* variable that is unknown or has a value that cannot be used, or names a file that cannot.

    Where GPUs are used also XLA_FLAGS, or an allocator of XLA's, with which collectives do not work.
    """


class JoinError(JaxringError, RuntimeError):
    """Processes of one job could not find, trust or reach each other."""


class MemoryLimitError(JaxringError, MemoryError):
    """Memory that this process needs could not be obtained."""


class PlanError(JaxringError, ValueError):
    """A call whose result would need a rank that is lost."""


class ReplicatedOperandWarning(UserWarning):
    """A sum, mean or product over ranks of a value that is the same on all of them: see `jaxring.data_parallel`."""
