"""Transfers behind computation: gradients in buckets, and matrix products in chunks."""
