"""Arrays from one sharding to another, between any processes. See docs/concepts/resharding.md."""
