#!/usr/bin/env bash
# Starts and stops a pool of Beam's Python workers (EXTERNAL), one on each host of a TaskManager:
#   pool.sh start           waits until it listens
#   pool.sh stop            and leaves no worker behind
#   pool.sh status          exit code 0 when it runs
#   --environment_type=EXTERNAL --environment_config=localhost:50000
# Two TaskManagers cannot share a pool: workers of both have the same names.
#
# Settings: those of worker.sh, and
#   POOL_PORT     where TaskManagers ask for workers             (50000)
#   POOL_DIR      pid, log and workers of this pool              (FLINK_DIR/pool)
set -euo pipefail

here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=deploy/flink/processes.sh
. "$here/processes.sh"
POOL_PORT=${POOL_PORT:-50000}
POOL_DIR=${POOL_DIR:-$FLINK_DIR/pool}
export FLINK_DIR WORKER_ENV WORKERS_DIR=${WORKERS_DIR:-$POOL_DIR/workers}

start() {
  check_worker_env
  mkdir -p "$POOL_DIR"
  if runs "$POOL_DIR/pool.pid"; then fail "this pool runs already: stop it first."; fi
  if listens "$POOL_PORT"; then fail "port $POOL_PORT is taken: set POOL_PORT."; fi
  launch "$POOL_DIR/pool.pid" "$POOL_DIR/pool.log" "$WORKER_ENV/bin/python" \
    -m apache_beam.runners.worker.worker_pool_main \
    --service_port="$POOL_PORT" --container_executable="$here/worker.sh"
  wait_until 60 listens "$POOL_PORT" || {
    stop
    fail "the pool did not start within a minute: see $POOL_DIR/pool.log."
  }
}

stop() {
  end "$POOL_DIR/pool.pid"
  end_workers "$WORKERS_DIR"
}

case ${1:-} in
  start) start ;;
  stop) stop ;;
  status) runs "$POOL_DIR/pool.pid" ;;
  *) usage ;;
esac
