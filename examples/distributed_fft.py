"""Solve Poisson's equation by Fourier transforms of a field that is divided among the devices (FFT by all_to_all).

    JAX_NUM_CPU_DEVICES=4 python examples/distributed_fft.py
    jaxring run -n 2 --devices-per-process 2 examples/distributed_fft.py

A device has some rows. It transforms along them, exchanges them for columns by one all_to_all, and transforms along
these. The transform is compared with NumPy's, and the solution with the field whose Laplacian was taken.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import jaxring

SIZE = 64  # of the periodic domain of 2π x 2π, in each direction


def fft2(rows, axis):
    """``rows[size / devices, size]``, in the space domain, to columns ``[size, size / devices]`` of the transform."""
    along_rows = jnp.fft.fft(rows, axis=1)
    columns = jaxring.all_to_all(along_rows, axis, split_axis=1, concat_axis=0, tiled=True)
    return jnp.fft.fft(columns, axis=0)


def ifft2(columns, axis):
    """The inverse, by the same way back."""
    along_columns = jnp.fft.ifft(columns, axis=0)
    rows = jaxring.all_to_all(along_columns, axis, split_axis=0, concat_axis=1, tiled=True)
    return jnp.fft.ifft(rows, axis=1)


def solve(rows, wave_numbers):
    """The u of zero mean whose Laplacian is ``rows``, and its transform's columns."""
    transform = fft2(rows, "rows")
    # This device's columns, by the x component of their wave numbers.
    count = transform.shape[1]
    here = jax.lax.dynamic_slice_in_dim(wave_numbers, jax.lax.axis_index("rows") * count, count)
    square = wave_numbers[:, None] ** 2 + here**2
    # The mean of u is not determined; it is taken as zero.
    solution = jnp.where(square == 0, 0, -transform / jnp.where(square == 0, 1, square))
    return ifft2(solution, "rows").real, transform


def main():
    mesh = Mesh(jax.devices(), ("rows",))
    y, x = np.mgrid[:SIZE, :SIZE] * (2 * np.pi / SIZE)
    u = np.sin(3 * x) * np.cos(2 * y) + np.cos(5 * x + y)
    laplacian = (-13 * np.sin(3 * x) * np.cos(2 * y) - 26 * np.cos(5 * x + y)).astype(np.float32)
    wave_numbers = np.fft.fftfreq(SIZE, 1 / SIZE).astype(np.float32)

    specs = P("rows"), P(None, "rows")
    sharded = jax.shard_map(solve, mesh=mesh, in_specs=(P("rows"), P()), out_specs=specs)
    solution, transform = jax.jit(sharded)(laplacian, wave_numbers)

    # Single precision, of values up to 26 * SIZE**2 / 2 in the transform.
    for result, expected, atol in ((transform, np.fft.fft2(laplacian), 0.05), (solution, u, 1e-5)):
        for shard in result.addressable_shards:  # those of this process
            np.testing.assert_allclose(shard.data, expected[shard.index], atol=atol)
    if jax.process_index() == 0:
        print(f"{SIZE} x {SIZE} points on {mesh.size} devices: the transform is that of NumPy, the solution is right")


if __name__ == "__main__":
    main()
