"""Serving systems: one module an engine for how it lays the cache out, and their planning facts and flags."""
