"""A comparison of this library with its peers, on the same exact potential.

    make bench
    python -m benchmarks.compare --problems banana funnel --methods leapwise numpyro-dense-4 --seeds 1

Every run is a fresh process, one after the other, with a limit to its time; a run that fails or takes too long becomes
a row that says so. Results are kept in ``out/bench``, one file for each problem, method, settings and seed, so that an
interrupted comparison goes on where it was.

========================= =========================================================================================
`cases`                   the posteriors, and which of the methods can sample them
`potentials`              the same log-densities in JAX, for the peers
`exact`                   what a method is given: the potential, its counts, the starts
`choice`                  whether peers get the potential in JAX or ours in NumPy: whichever is faster
`methods`                 who takes part, and the settings that are tried
`numpyro_nuts`, ...       how each is run
`worker`                  one run, in its own process
`cells`                   runs that are kept
`schedule`                which runs to make: settings on the first seed, the best of them on the others
`figures`                 from draws to figures
`report`, `picture`       the table and the picture
========================= =========================================================================================
"""
