"""Compressed collectives: values are quantised in blocks before they travel. See docs/concepts/compression.md."""
