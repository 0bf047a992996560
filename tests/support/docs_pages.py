"""Pages of the docs in the order of the site, and their blocks that other tests run."""

import re

from tests.conftest import ROOT
from tests.support.docs_tools import RUN, Block, blocks_of

# Blocks that need more than a machine with Shardmill, by their page: why, and their first words.
# The tests of packaging, deploy/ and clusters run the same commands.
ELSEWHERE = {
    "README.md": ("the installation", ["pip install"]),
    "docs/getting-started.md": ("the installation", ["python3 -m venv"]),
    "docs/annotations.md": (
        "PASCAL VOC 2012, a download of 2 GB",
        ["shardmill images --input=VOC"],
    ),
    "docs/beam.md": ("Prism, and a file of the repository", ["python -m apache_beam.yaml.main"]),
    "docs/counting.md": ("Dataflow", ["shardmill verify gs://"]),
    "docs/training.md": (
        "other libraries, which tests/cluster/test_interop.py has",
        [
            "import datasets",
            "import tensorflow_datasets",
            "from glob",
            "import lightning",
        ],
    ),
    "docs/runners.md": ("a program of Beam", ["deploy/prism/install.sh"]),
    "docs/airflow.md": (
        "a server of Airflow",
        [
            "python3 -m venv /opt/shardmill",
            "deploy/airflow/install.sh",
            "airflow dags trigger",
        ],
    ),
    "docs/flink.md": (
        "a cluster of Flink",
        [
            "make demo",
            "for shard in",
            "REGISTRY=",
            "kubectl -n shardmill delete",
            "FLINK=1.20.0",
            "cd deploy/flink/kubernetes",
        ],
    ),
    "docs/dataflow.md": ("Google Cloud", ["export PROJECT="]),
    "docs/storage.md": ("a bucket", ["pip install"]),
    "docs/gcs.md": ("a bucket or its emulator", ["pip install", "deploy/gcs/install_emulator.sh"]),
    "docs/add-an-input-kind.md": (
        "a clone with the page's changes, which test_add_an_input_kind.py makes",
        ["InputKind(", "# pipelines/", "python -m shardmill texts"],
    ),
}


def pages() -> list[str]:
    """Return the front page and the pages of the site in the order of its navigation."""
    index = (ROOT / "docs" / "index.md").read_text()
    names = ["README.md", "docs/index.md"]
    for tree in re.findall(r"^```\{toctree\}\n(.*?)```", index, re.DOTALL | re.MULTILINE):
        for line in tree.splitlines():
            if line and not line.startswith(":"):
                paths = sorted((ROOT / "docs").glob(f"{line}.md"))
                names += [path.relative_to(ROOT).as_posix() for path in paths]
    return names


def elsewhere(block: Block) -> bool:
    """Report whether a block is run by another test."""
    _, first_words = ELSEWHERE.get(block.page, ("", []))
    return block.first.startswith(tuple(first_words))


BLOCKS = [block for page in pages() for block in blocks_of(ROOT / page)]
RUNNABLE = [block for block in BLOCKS if block.language in RUN]
HERE = [block for block in RUNNABLE if not elsewhere(block)]
FOLLOWED = list(dict.fromkeys(block.page for block in HERE))
