"""Hamiltonian motion of a batch of chains: metrics, leapfrog, generalised leapfrog.

Nothing here knows of targets: a *force* is any function of positions that returns potentials and gradients.
"""
