from .loaders import Records as Records
from .loaders import Stream as Stream
from .loaders import class_weights as class_weights
from .loaders import feature_spec as feature_spec
from .loaders import files as files
from .loaders import keras_dataset as keras_dataset
from .loaders import normalization as normalization
from .loaders import open_dataset as open_dataset
from .loaders import steps_per_epoch as steps_per_epoch
from .schemas.errors import ShardmillError as ShardmillError

__version__: str
