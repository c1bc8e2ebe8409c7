"""Runs: their folders, records, progress, and several at once."""
