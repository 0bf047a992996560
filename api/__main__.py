"""``python -m shardmill`` runs the ``shardmill`` command."""

from __future__ import annotations

import sys

from shardmill.pipelines.cli import main

if __name__ == "__main__":
    sys.exit(main())
