"""The links of a cluster: which ones messages take, and how fast what crosses them at once is."""
