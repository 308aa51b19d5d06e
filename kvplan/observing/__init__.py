"""The rooms of the observe stage: kvplan/observe.py is their only door."""
