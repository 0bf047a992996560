#!/usr/bin/env bash
# Runs one of Beam's Python workers; TaskManagers (PROCESS) and worker pools (EXTERNAL) start it.
#   --environment_type=PROCESS --environment_config='{"command": "/path/to/worker.sh"}'
#
# A worker exits when its TaskManager or the process that started it exits, even if that is killed.
# It runs in a separate folder under WORKERS_DIR, which is deleted when it exits; its log is kept.
#
# Settings, which cluster.sh and pool.sh pass on:
#   FLINK_DIR     where install.sh installed                     (.cache/flink of the repository)
#   WORKER_ENV    Python environment with Shardmill and pip      (.venv of the repository)
#   WORKERS_DIR   folders and logs of workers                    (FLINK_DIR/workers)
set -euo pipefail

self=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)/$(basename -- "${BASH_SOURCE[0]}")
root=$(CDPATH='' cd -- "$(dirname -- "$self")/../.." && pwd)
FLINK_DIR=${FLINK_DIR:-$root/.cache/flink}
WORKER_ENV=${WORKER_ENV:-$root/.venv}
WORKERS_DIR=${WORKERS_DIR:-$FLINK_DIR/workers}

lives() { # OPTION OF PS...
  # shellcheck disable=SC2009 # pgrep would count zombies
  ps -o stat= "$@" | grep -q '^[^Z]'
}

listens() { # HOST:PORT
  local host=${1%:*}
  host=${host#[}
  timeout 5 bash -c "exec 3<>/dev/tcp/${host%]}/${1##*:}" 2>/dev/null
}

wanted() { # STARTER ENDPOINT
  local try
  lives -p "$1" || return 1
  for try in 1 2 3; do
    listens "$2" && return
    [ "$try" = 3 ] || sleep 0.5
  done
  return 1
}

# Stops a worker when its starter or endpoint is gone, and deletes its folder. The boot and all
# processes that it starts share a session, even if they create process groups.
watch() { # STARTER ENDPOINT FOLDER BOOT
  while lives -p "$4" && wanted "$1" "$2"; do sleep 1; done
  pkill -TERM -s "$4" || true
  local waited
  for waited in 1 2 3 4 5 6; do
    lives -s "$4" || break
    [ "$waited" -lt 6 ] || pkill -KILL -s "$4" || true
    sleep 0.5
  done
  rm -rf "$3"
}

if [ "${1:-}" = --watch ]; then
  shift
  watch "$@"
  exit
fi
if [ "${1:-}" = --boot ]; then # in its own session, in its folder
  shift
  setsid --fork "$self" --watch "$1" "$2" "$PWD" "$$" </dev/null
  shift 2
  echo "$$" >session
  exec "$FLINK_DIR/bin/boot" "$@" --semi_persist_dir="$PWD"
fi

endpoint=
for argument in "$@"; do
  case $argument in
    --provision_endpoint=*) endpoint=${argument#*=} ;;
  esac
done
[ -n "$endpoint" ] || {
  echo "worker.sh: no --provision_endpoint: a TaskManager or a worker pool starts this." >&2
  exit 2
}
mkdir -p "$WORKERS_DIR/log"
folder=$(mktemp -d "$WORKERS_DIR/worker.XXXXXX")
cd "$folder"
exec >"$WORKERS_DIR/log/${folder##*/}.log" 2>&1
# Without it, the boot would install a job's packages into a virtual environment under /opt.
export PATH="$WORKER_ENV/bin:$PATH" RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
exec setsid "$self" --boot "$PPID" "$endpoint" "$@"
