"""The rooms of the plan stage: kvplan/plan.py is their only door."""
