"""Plans of others (MSCCL's XML, MSCCL++'s JSON) as algorithms that run by their name."""
