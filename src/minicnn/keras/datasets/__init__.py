"""Data sets whose `load_data` gives them as Keras does: arrays of training and test."""

from minicnn.keras.datasets import cifar10 as cifar10
from minicnn.keras.datasets import fashion_mnist as fashion_mnist
from minicnn.keras.datasets import mnist as mnist
