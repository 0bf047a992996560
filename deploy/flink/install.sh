#!/usr/bin/env bash
# Installs the parts of a Flink cluster for Shardmill, from package registries, into one folder:
#   install.sh [DIR]        DIR is .cache/flink of the repository unless given
#
#   DIR/flink               a Flink distribution            PyPI: apache-flink, apache-flink-libraries
#   DIR/job-server.jar      Beam's job server for Flink     Maven: pom.xml in this folder
#   DIR/flink/lib           Beam's runner among its jars     the same
#   DIR/bin/boot            starts Beam's Python workers    Go: github.com/apache/beam/sdks/v2
#
# Settings: WORKER_ENV, the Python environment that workers run in (.venv of the repository); and FLINK,
# RUNNER and JOB_SERVICE, the versions of Flink and of Beam's two jars (1.19.3, 2.70.0 and 2.65.0).
# Parts of the right version are kept, so an interrupted installation can be resumed.
set -euo pipefail

FLINK=${FLINK:-1.19.3}
RUNNER=${RUNNER:-2.70.0}
JOB_SERVICE=${JOB_SERVICE:-2.65.0}
here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
root=$(CDPATH='' cd -- "$here/../.." && pwd)
WORKER_ENV=${WORKER_ENV:-$root/.venv}

fail() {
  echo "install.sh: $1" >&2
  exit 1
}

need() {
  command -v "$1" >/dev/null || fail "$1 is not installed: $2."
}

python_of_workers() {
  [ -x "$WORKER_ENV/bin/python" ] ||
    fail "there is no Python environment at $WORKER_ENV: run \`make demo\`, or set WORKER_ENV."
  # Beam's boot calls pip by its name, and uv makes environments without it.
  [ -x "$WORKER_ENV/bin/pip" ] || "$WORKER_ENV/bin/python" -m ensurepip --default-pip >/dev/null
}

install_flink() {
  [ "$(cat "$dir/flink/.version" 2>/dev/null)" = "$FLINK" ] && return
  echo "Installing Flink $FLINK"
  local pip=("$WORKER_ENV/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps)
  # The jars are in one package and the scripts, the same for every Python, in the other.
  "${pip[@]}" --dest "$work" --no-binary apache-flink-libraries "apache-flink-libraries==$FLINK"
  "${pip[@]}" --dest "$work" --only-binary :all: --platform manylinux1_x86_64 --python-version 3.11 \
    "apache-flink==$FLINK"
  # PyPI's own hashes: another file under these names is not installed.
  (cd "$work" && grep -e "-$FLINK[.-]" "$here/checksums.txt" | sha256sum --check --strict --quiet) ||
    fail "checksums.txt has other hashes of Flink $FLINK, or none: add those that PyPI lists."
  mkdir "$work/flink"
  tar -xzf "$work"/apache?flink?libraries-"$FLINK".tar.gz -C "$work/flink" --strip-components 2 \
    --wildcards '*/deps'
  "$WORKER_ENV/bin/python" -m zipfile -e "$work/apache_flink-$FLINK"-*.whl "$work/wheel"
  cp -R "$work/wheel/pyflink/bin" "$work/wheel/pyflink/conf" "$work/flink/"
  chmod +x "$work"/flink/bin/*
  echo "$FLINK" >"$work/flink/.version"
  rm -rf "$dir/flink"
  mv "$work/flink" "$dir/flink"
}

install_job_server() {
  local pom
  local versions=("-Dflink=${FLINK%.*}" "-Drunner=$RUNNER" "-Djob.service=$JOB_SERVICE")
  pom=$(cksum <"$here/pom.xml")${versions[*]}
  [ "$(cat "$dir/flink/lib/.pom" 2>/dev/null)" = "$pom" ] && [ -f "$dir/job-server.jar" ] && return
  need mvn "install Maven, https://maven.apache.org/install.html"
  echo "Installing Beam's job server"
  mkdir "$work/server"
  cp "$here/pom.xml" "$work/server/"
  (cd "$work/server" && mvn --batch-mode --quiet --strict-checksums -Dstyle.color=never "${versions[@]}" package)
  mv "$work/server/target/flink-job-server-1-job-server.jar" "$dir/job-server.jar"
  mv "$work/server/target/flink-job-server-1-runner.jar" "$dir/flink/lib/beam-flink-runner.jar"
  echo "$pom" >"$dir/flink/lib/.pom"
}

install_boot() {
  local beam
  beam=$("$WORKER_ENV/bin/python" -c 'from importlib.metadata import version as v; print(v("apache-beam"))' 2>/dev/null) ||
    fail "apache-beam is not installed in $WORKER_ENV: run \`make demo\`, or set WORKER_ENV."
  [ "$(cat "$dir/bin/.boot" 2>/dev/null)" = "$beam" ] && [ -x "$dir/bin/boot" ] && return
  need go "see https://go.dev/dl"
  echo "Installing the boot of Beam $beam's Python workers"
  mkdir -p "$dir/bin"
  GOBIN=$work go install "github.com/apache/beam/sdks/v2/python/container@v$beam"
  mv "$work/container" "$dir/bin/boot"
  echo "$beam" >"$dir/bin/.boot"
}

need java "Flink $FLINK runs on Java 11 or 17, and Java 17 is known to work"
python_of_workers
dir=${1:-$root/.cache/flink}
mkdir -p "$dir"
dir=$(CDPATH='' cd -- "$dir" && pwd)
work=$(mktemp -d "$dir/.installing.XXXXXX")
trap 'rm -rf "$work"' EXIT
install_flink
install_job_server
install_boot
