"""The documentation; `generate` writes the parts of it that come from runs and settings."""
