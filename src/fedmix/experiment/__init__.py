"""Experiments: their specs, presets and sweeps."""
