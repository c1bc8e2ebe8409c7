"""An experiment as a value: its spec, its presets."""
