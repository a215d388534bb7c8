"""Cluster points that are divided among processes, with NumPy alone: k-means by a Communicator.

    jaxring run -n 2 examples/numpy_communicator.py
    jaxring run -n 4 examples/numpy_communicator.py

No JAX program is compiled: `jaxring.Communicator` takes NumPy arrays, between the processes of a job. The centres are
compared with those that one process finds in all points.
"""

import numpy as np

import jaxring

POINTS, DIMENSIONS, CENTRES, ROUNDS = 600, 2, 5, 10


def blobs():
    """Points around CENTRES places."""
    random = np.random.default_rng(0)
    places = 5 * random.standard_normal((CENTRES, DIMENSIONS))
    return places[random.integers(CENTRES, size=POINTS)] + random.standard_normal((POINTS, DIMENSIONS))


def sums(points, centres):
    """The sum of the points next to each centre, and in the last column their number."""
    nearest = ((points[:, None] - centres) ** 2).sum(axis=-1).argmin(axis=1)
    result = np.zeros((CENTRES, DIMENSIONS + 1))
    np.add.at(result, nearest, np.column_stack([points, np.ones(len(points))]))
    return result


def moved(centres, sums):
    """A centre that no point is next to stays where it is."""
    return np.where(sums[:, -1:] > 0, sums[:, :-1] / np.maximum(sums[:, -1:], 1), centres)


def divided(comm, points):
    """``points`` are this process's."""
    centres = comm.broadcast(points[:CENTRES])  # of process 0
    for _ in range(ROUNDS):
        mine = sums(points, centres)
        comm.all_reduce(mine, mine)  # into the same array, the fastest way
        centres = moved(centres, mine)
    distances = ((points[:, None] - centres) ** 2).sum(axis=-1).min(axis=1)
    farthest = comm.all_reduce(distances.max(keepdims=True), op="max")
    return centres, farthest[0] ** 0.5


def single(points):
    centres = points[:CENTRES]
    for _ in range(ROUNDS):
        centres = moved(centres, sums(points, centres))
    distances = ((points[:, None] - centres) ** 2).sum(axis=-1).min(axis=1)
    return centres, distances.max() ** 0.5


def main():
    comm = jaxring.Communicator()
    points = blobs()
    centres, farthest = divided(comm, np.array_split(points, comm.size)[comm.rank])
    expected_centres, expected_farthest = single(points)
    np.testing.assert_allclose(centres, expected_centres, rtol=1e-9)
    np.testing.assert_allclose(farthest, expected_farthest, rtol=1e-9)

    # The same bits everywhere, too.
    for other in comm.all_gather(centres):
        np.testing.assert_array_equal(centres, other)
    if comm.rank == 0:
        print(f"{POINTS} points in {comm.size} processes: the farthest is {farthest:.3f} from its centre")
        print("the centres are those of one process")


if __name__ == "__main__":
    main()
