from .arrays import build_arrays as build_arrays
from .arrays_config import ArraysConfig as ArraysConfig
from .count import build_count as build_count
from .images import build_images as build_images
from .images_config import ImagesConfig as ImagesConfig
from .rows import build_rows as build_rows
from .rows_config import RowsConfig as RowsConfig
from .tool_options import CountConfig as CountConfig
