"""What a running job says of itself: its log, its warnings, its records and what viewers see of it."""
