"""The loop between `fit` and a backend.

`adapters` brings data into standard form; `sources`, `batches` and `prefetch` cut them into runs of steps. `step`,
`objective` and `tracing` make Programs of a model's steps, which `executor` runs on its `variables`. `training` goes
over epochs, `predictions` over batches to predict.
"""
