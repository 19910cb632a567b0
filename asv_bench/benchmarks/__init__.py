"""The performance history of minicnn: primitives, training steps, starting, memory, on every backend that is there."""
