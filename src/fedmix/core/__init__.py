"""What everything else speaks in: types, errors, random streams, losses, files."""
