"""Eight CPU devices for the tests that use JAX in pytest's own process; set before JAX starts its backend."""

import os

DEVICES = 8

# With few threads, jaxlib's own pool can run out while launches wait for each other.
if int(os.environ.get("PJRT_NPROC") or 0) < 8 * DEVICES:
    os.environ["PJRT_NPROC"] = str(8 * DEVICES)

# A hang of the engine ends well before pytest's own timeout, which cannot interrupt native code.
os.environ.setdefault("JAXRING_TIMEOUT", "60")

import jax  # noqa: E402

# Not by the environment, which processes that tests start would inherit.
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", DEVICES)
