"""What happens between `fit` and a backend: data in standard form, batches, steps as Programs, and their execution.

`adapters` brings data into standard form, `batches` cuts them, `prefetch` makes batches ready while a device computes,
`objective` says what is trained for, `tracing` makes Programs of a model's steps, and `executor` runs them.
"""
