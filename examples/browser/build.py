"""A page that trains a network on drawn digits in a browser tab.

    python examples/browser/build.py site && cd site && npm install && python3 -m http.server

Then open http://localhost:8000.
"""

import sys

from minicnn import data, optimizers, zoo
from minicnn.interop import export_page
from minicnn.losses import SparseCategoricalCrossentropy

folder = sys.argv[1] if len(sys.argv) > 1 else "site"
model = zoo.get_model("platforms", backend="numpy")
model.compile(optimizers.Adam(0.002), SparseCategoricalCrossentropy(from_logits=True))
export_page(model, folder, data.load("synthetic_digits", n_train=4000, n_test=500))
print(f"{folder}: index.html and what it reads; npm install brings onnxruntime-web")
