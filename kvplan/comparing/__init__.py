"""Rooms of the compare stage: results in, requests paired, differences with their intervals, simulations graded."""
