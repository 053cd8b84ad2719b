"""Sharpened estimates and the evidence."""
