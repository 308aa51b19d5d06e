"""The rooms of the model stage: kvplan/model.py is their only door."""
