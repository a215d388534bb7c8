"""The settings by subject: a dataclass a file, each field of which is a row of the table."""
