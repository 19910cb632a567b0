"""One training as the command line and the studies carry it out: its settings, data and model."""
