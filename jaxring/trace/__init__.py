"""Flight records: the last operations of each process, read from its memory or from a file that outlived it."""
