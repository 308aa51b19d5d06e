"""Rooms of the residency stage: what it reads, the machine that plays a log, what is said of it, what to set."""
