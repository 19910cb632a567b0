"""Networks as scikit-learn's estimators: `CNNClassifier` and `CNNRegressor`.

They go into pipelines, grids and cross-validation. With scikit-learn's `array_api_dispatch` they take arrays of any
library of the Array API, and give predictions, `classes_` included, in its arrays and on its device.
"""

from minicnn.extras import install

try:
    import sklearn as sklearn
except ImportError as error:
    message = f"minicnn.sklearn makes estimators of scikit-learn: {install('sklearn')}."
    raise ImportError(message, name=error.name) from error

from minicnn.sklearn.classifier import CNNClassifier
from minicnn.sklearn.regressor import CNNRegressor

__all__ = ["CNNClassifier", "CNNRegressor"]
