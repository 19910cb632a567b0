"""The course: exercises, each a file with a blank, and a grader that draws the arguments and knows the answers.

A skeleton, `skeletons/NAME.py`, holds the text and the blank; its entry in `course` holds tasks, answers, hints and
common mistakes. What is filled in runs in a process of its own, which has neither the answers nor the library.
"""
