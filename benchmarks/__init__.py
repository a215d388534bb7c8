"""Studies of this repository, run from the checkout as `python -m benchmarks.NAME`. No wheel has them.

`cpu` and `page` make docs/benchmarks.md, `programs` and `page` docs/benchmarks/programs.md; `gpu` builds, tests and
measures the CUDA engine on a machine with a GPU. `versions` compares two installed versions of jaxring. The others
answer one question each, which their first lines say.
What times a user's own collectives is `jaxring bench`, on which these are built.
"""
