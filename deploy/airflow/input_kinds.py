"""Write the list of commands that a DAG may run, for environments without Shardmill."""

from __future__ import annotations

import json
from pathlib import Path

from shardmill.pipelines.commands import INPUT_KINDS

FILE = Path(__file__).parent / "dags" / "shardmill_airflow" / "input_kinds.json"

if __name__ == "__main__":
    FILE.write_text(json.dumps(list(INPUT_KINDS)) + "\n", encoding="utf-8")
