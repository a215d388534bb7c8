"""What only GPUs have: a tuner of their own, and the algorithms `copy_engine` and `nvls`."""
