"""Types, errors, random streams, losses and files that all other packages use."""
