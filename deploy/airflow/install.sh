#!/bin/sh
# Installs Airflow once, in a dedicated environment, and prints its folder: install.sh [DIR], by default
# .cache/airflow/HASH. Airflow's dependencies conflict with those of TensorFlow Transform.
set -eu

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
PYTHON=${PYTHON:-python3}

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "install.sh: the DAGs need Python 3.11 or later: set PYTHON." >&2
  exit 1
}
hash=$( (cat "$here/requirements.txt"; "$PYTHON" --version) | cksum | cut -d' ' -f1)
dir=${1:-$here/../../.cache/airflow/$hash}
if [ ! -e "$dir/.installed" ]; then
  mkdir -p "$dir"
  # Compiled once: else each task would compile Airflow again.
  if command -v uv >/dev/null; then
    uv venv --quiet --allow-existing --python "$PYTHON" "$dir" >&2
    uv pip install --quiet --require-hashes --no-deps --compile-bytecode --python "$dir/bin/python" -r "$here/requirements.txt" >&2
  else
    "$PYTHON" -m venv "$dir" >&2
    "$dir/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r "$here/requirements.txt" >&2
  fi
  touch "$dir/.installed"
fi
CDPATH= cd -- "$dir" && pwd
