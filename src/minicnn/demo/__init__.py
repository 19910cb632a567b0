"""A page on this machine on which one draws an image, and sees what a saved model makes of it while one draws."""

from __future__ import annotations

from minicnn.demo.server import Demo, serve

__all__ = ["Demo", "serve"]
