"""The exercises, a module for each chapter: what is drawn, the answers, hints and common mistakes."""
