#!/bin/sh
# Installs the emulator of Google Cloud Storage that the gs:// tests run against, once, with Go.
set -eu

VERSION=v1.56.1
root=$(CDPATH= cd -- "$(dirname -- "$0")/../.." && pwd)
GOBIN=${GOBIN:-$root/.cache/bin}
export GOBIN

if [ -x "$GOBIN/fake-gcs-server" ] && [ "$(cat "$GOBIN/.fake-gcs-server" 2>/dev/null)" = "$VERSION" ]; then
  exit 0
fi
command -v go >/dev/null || { echo "Go is not installed: see https://go.dev/dl" >&2; exit 1; }
mkdir -p "$GOBIN"
go install "github.com/fsouza/fake-gcs-server@$VERSION"
echo "$VERSION" >"$GOBIN/.fake-gcs-server"
