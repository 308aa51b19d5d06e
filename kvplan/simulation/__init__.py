"""The rooms of the simulate stage: kvplan/simulate.py is their only door."""
