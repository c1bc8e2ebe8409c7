"""Training of a federation: settings, draws, batches, local steps and rounds."""
