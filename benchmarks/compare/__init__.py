"""A comparison of this library with its peers, on the same exact potential.

    make bench
    python -m benchmarks.compare --problems banana funnel --methods leapwise numpyro-dense-4 --seeds 1

Every run is a new process, one after the other, with a time limit. A run that fails or takes too long becomes a row
that says so. Results are kept in ``out/bench``, one file for each problem, method, settings and seed, so that an
interrupted comparison continues where it was.

========================= =========================================================================================
`cases`                   the posteriors, and which of the methods can sample them
`potentials`              the same log-densities in JAX, for the peers
`exact`                   the potential, counts and starts that every method is given
`choice`                  the faster form of the potential for each peer: in JAX, or ours in NumPy
`methods`                 the methods, and the settings that are tried
`numpyro_nuts`, ...       how each is run
`worker`                  one run, in its own process
`cells`                   runs that are kept
`schedule`                which runs to make: settings on the first seed, the best of them on the others
`figures`                 the figures of the table, from draws and cost
`report`, `picture`       the table and the picture
========================= =========================================================================================
"""
