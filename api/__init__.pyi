from .loaders import Mix as Mix
from .loaders import Records as Records
from .loaders import Stream as Stream
from .loaders import balanced as balanced
from .loaders import class_weights as class_weights
from .loaders import feature_spec as feature_spec
from .loaders import files as files
from .loaders import keras_dataset as keras_dataset
from .loaders import mix as mix
from .loaders import normalization as normalization
from .loaders import open_dataset as open_dataset
from .loaders import steps_per_epoch as steps_per_epoch
from .loaders import torch_dataset as torch_dataset
from .loaders import vocabulary as vocabulary
from .pipelines.calls import BuildResult as BuildResult
from .pipelines.calls import VerifyResult as VerifyResult
from .pipelines.calls import arrays as arrays
from .pipelines.calls import count as count
from .pipelines.calls import images as images
from .pipelines.calls import rows as rows
from .pipelines.calls import verify as verify
from .pipelines.python_source import write as write
from .pipelines.read_dataset import ReadDataset as ReadDataset
from .pipelines.report.dataset_report import report as report
from .pipelines.write_dataset import WriteDataset as WriteDataset
from .schemas.errors import ShardmillError as ShardmillError

__version__: str
