"""Exercises: each blanks a primitive's reference, gradient or kernel, and a grader compares what is filled in.

A skeleton, `skeletons/NAME.py`, holds the docstrings and the blank. Checks, each worth some points, compare what is
filled in with the library's own primitive, with difference quotients, on every backend's arrays, and its speed.
"""
