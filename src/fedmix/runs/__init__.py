"""Runs: their folders, records and progress, and several runs at once."""
