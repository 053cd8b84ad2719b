"""Stand-ins of the potential, all linear in their trained weights."""
