"""Train a network of the studies on Fashion-MNIST: ten kinds of clothing in the format of MNIST.

Run `python examples/fashion_mnist.py --backend torch --network kernels`.
"""

from mnist import main

if __name__ == "__main__":
    main("fashion_mnist")
