"""Posteriors to hold the sampler to: those of posteriordb, and random ones."""
