"""The rooms of the probe stage: kvplan/probe.py and the three probe_*.py are its doors."""
