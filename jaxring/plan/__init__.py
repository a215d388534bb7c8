"""Planning: schedules of steps, the algorithms that make them, and what checks, prices and chooses them."""
