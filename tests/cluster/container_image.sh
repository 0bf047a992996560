#!/usr/bin/env bash
# Builds the images of deploy/dataflow/Dockerfile, unchanged, on bases made here:
#   container_image.sh STORE IMAGE LAUNCHER
#
#   STORE   a folder for images and what they are made of; what is there already stays. Its file
#           `driver` says how images are kept: as overlays, or where the kernel has none, as copies
#   IMAGE, LAUNCHER   the names of the images of workers and of the launcher
#
# The bases have the names of the real ones. Python's is Debian with its Python, Beam's has the real
# boot, built from its source, and the launcher of templates is a script that opens its log and starts
# the program which the image names, as the real one does. It needs Go and Debian packages, and to be root.
set -euo pipefail

store=$1
image=$2
launcher=$3
root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
file=$root/deploy/dataflow/Dockerfile

fail() {
  echo "container_image.sh: $1" >&2
  exit 1
}

packages() {
  local missing=()
  command -v buildah >/dev/null || missing+=(buildah)
  command -v debootstrap >/dev/null || missing+=(debootstrap)
  [ ${#missing[@]} -eq 0 ] && return
  [ "$(id -u)" -eq 0 ] || fail "${missing[*]} is not installed: apt-get install ${missing[*]}"
  echo "Installing ${missing[*]}"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

buildah_here() {
  buildah --storage-driver "$driver" --root "$store/images" --runroot "$store/run" "$@"
}

have() {
  buildah_here inspect --type image "$1" >/dev/null 2>&1
}

# The base that a stage of the Dockerfile is made from, with its settings filled in.
base_of() {
  sed -n "s/^FROM \(.*\) AS $1\$/\1/p" "$file" | sed "s/\${PYTHON}/$python/; s/\${BEAM}/$beam/"
}

from_folder() {
  printf 'FROM scratch\nCOPY . /\nENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n' >"$store/Dockerfile"
  buildah_here build --quiet --isolation chroot --file "$store/Dockerfile" --tag "$2" "$1" >/dev/null
}

python_base() {
  have "$1" && return
  echo "Making $1 of Debian packages"
  rm -rf "$store/python"
  debootstrap --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates \
    bookworm "$store/python" http://deb.debian.org/debian >"$store/debootstrap.log" ||
    fail "debootstrap failed: see $store/debootstrap.log"
  local name
  for name in python python3 "python$python"; do
    ln -sf "/usr/bin/python$python" "$store/python/usr/local/bin/$name"
  done
  rm -rf "$store/python/var/cache/apt/archives" "$store/python/var/lib/apt/lists"
  from_folder "$store/python" "$1"
  rm -rf "$store/python"
}

beam_base() {
  have "$1" && return
  command -v go >/dev/null || fail "Go is not installed: see https://go.dev/dl"
  echo "Making $1 of Beam's source"
  mkdir -p "$store/beam/opt/apache/beam"
  CGO_ENABLED=0 GOBIN=$store go install "github.com/apache/beam/sdks/v2/python/container@v$beam"
  mv "$store/container" "$store/beam/opt/apache/beam/boot"
  from_folder "$store/beam" "$1"
}

launcher_base() {
  have "$1" && return
  local program=$store/launcher/opt/google/dataflow/python_template_launcher
  mkdir -p "$(dirname "$program")"
  cat >"$program" <<'SCRIPT'
#!/bin/sh
set -e
mkdir -p /var/log/dataflow/template_launcher
: >>/var/log/dataflow/template_launcher/runner-json.log
exec python "$FLEX_TEMPLATE_PYTHON_PY_FILE" "$@"
SCRIPT
  chmod 755 "$program"
  from_folder "$store/launcher" "$1"
}

choose_driver() {
  [ -e "$store/driver" ] && return
  mkdir -p "$store/try/"{lower,upper,work,merged}
  if mount -t overlay overlay "$store/try/merged" \
    -o "lowerdir=$store/try/lower,upperdir=$store/try/upper,workdir=$store/try/work" 2>/dev/null; then
    umount "$store/try/merged"
    echo overlay >"$store/driver"
  else
    echo vfs >"$store/driver"
  fi
  rm -rf "$store/try"
}

packages
mkdir -p "$store"
store=$(CDPATH='' cd -- "$store" && pwd)
choose_driver
driver=$(cat "$store/driver")
python=$(sed -n 's/^ARG PYTHON=//p' "$file")
beam=$(sed -n 's/^ARG BEAM=//p' "$file")
python_base "docker.io/library/$(base_of build)"
beam_base "docker.io/$(base_of beam)"
launcher_base "$(base_of launcher)"

mounts=()
for path in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do  # how this machine reaches PyPI
  [ -e "$path" ] && mounts+=(--volume "$path:$path:ro")
done
build_image() {
  echo "Building $2"
  buildah_here build --isolation chroot --layers --pull-never --network host "${mounts[@]}" \
    --file "$file" --target "$1" --build-arg "IMAGE=$image" --tag "$2" "$root" \
    >"$store/build.log" 2>&1 || fail "the image cannot be built: $(tail -n 5 "$store/build.log")"
}

build_image worker "$image"
build_image template "$launcher"
