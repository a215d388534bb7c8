"""Why a collective of a module stays with XLA."""


class UnservedError(Exception):
    """The engine cannot carry this collective; the text says why, for `jaxring.explain`."""
