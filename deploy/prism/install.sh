#!/bin/sh
# Installs Prism, Beam's runner for one machine, once, with Go: install.sh [DIR], by default .cache/bin.
set -eu

root=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
WORKER_ENV=${WORKER_ENV:-$root/.venv}
dir=${1:-$root/.cache/bin}

beam=$("$WORKER_ENV/bin/python" -c 'from importlib.metadata import version as v; print(v("apache-beam"))') || {
  echo "install.sh: apache-beam is not installed in $WORKER_ENV: run \`make demo\`, or set WORKER_ENV." >&2
  exit 1
}
if [ -x "$dir/prism" ] && [ "$(cat "$dir/.prism" 2>/dev/null)" = "$beam" ]; then
  exit 0
fi
command -v go >/dev/null || { echo "install.sh: Go is not installed: see https://go.dev/dl" >&2; exit 1; }
mkdir -p "$dir"
dir=$(CDPATH= cd -- "$dir" && pwd)
GOBIN=$dir go install "github.com/apache/beam/sdks/v2/go/cmd/prism@v$beam"
echo "$beam" >"$dir/.prism"
