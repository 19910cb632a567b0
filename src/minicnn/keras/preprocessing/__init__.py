"""Images made ready outside the model, as in Keras 2."""

from minicnn.keras.preprocessing import image as image
from minicnn.keras.utils import image_dataset_from_directory as image_dataset_from_directory
