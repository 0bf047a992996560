#!/usr/bin/env bash
# Runs a Flink cluster of several TaskManagers on this machine:
#   cluster.sh start        a JobManager and the TaskManagers; waits until they are ready
#   cluster.sh add          one more TaskManager
#   cluster.sh status       the cluster's TaskManagers and free slots; exit code 0 if it runs
#   cluster.sh pids         the processes, one per line: taskmanager-1 4711
#   cluster.sh stop         ends all processes and their workers
#
# Settings, by environment variables:
#   FLINK_DIR             where install.sh installed               (.cache/flink of the repository)
#   CLUSTER_DIR           configuration, logs and scratch          (FLINK_DIR/cluster)
#   WORKER_ENV            Python environment of workers            (.venv of the repository)
#   TASK_MANAGERS         how many                                 (2)
#   SLOTS                 of each TaskManager                      (2)
#   REST_PORT, RPC_PORT   the page and API, and the JobManager     (8081, 6123)
#   JOB_PORT              of a job server that stays               (none: a command starts its own)
#   JOB_MANAGER_MEMORY    of each process                          (1600m)
#   TASK_MANAGER_MEMORY                                            (2g)
#   FLINK_CONFIG          more lines for Flink's configuration     (none)
# Two clusters on one machine need a different CLUSTER_DIR and different ports; the ports not named
# here are chosen among free ones.
#
# A job survives the loss of a TaskManager if slots are left, or after `add` started a new one.
set -euo pipefail

here=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=deploy/flink/processes.sh
. "$here/processes.sh"
CLUSTER_DIR=${CLUSTER_DIR:-$FLINK_DIR/cluster}
TASK_MANAGERS=${TASK_MANAGERS:-2}
REST_PORT=${REST_PORT:-8081}
RPC_PORT=${RPC_PORT:-6123}
JOB_PORT=${JOB_PORT:-}
export FLINK_DIR WORKER_ENV WORKERS_DIR=${WORKERS_DIR:-$CLUSTER_DIR/workers}
export FLINK_CONF_DIR=$CLUSTER_DIR/conf FLINK_LOG_DIR=$CLUSTER_DIR/log FLINK_PID_DIR=$CLUSTER_DIR/tmp

configure() {
  mkdir -p "$FLINK_CONF_DIR" "$FLINK_LOG_DIR" "$CLUSTER_DIR/tmp" "$CLUSTER_DIR/pids" "$WORKERS_DIR"
  cp "$FLINK_DIR"/flink/conf/log4j*.properties "$FLINK_CONF_DIR/"
  {
    # Flink's own lines that open Java's modules: without them it does not run on Java 17.
    grep -A3 '^env:' "$FLINK_DIR/flink/conf/config.yaml"
    cat <<YAML
jobmanager.rpc.address: localhost
jobmanager.bind-host: localhost
jobmanager.rpc.port: $RPC_PORT
jobmanager.memory.process.size: ${JOB_MANAGER_MEMORY:-1600m}
jobmanager.execution.failover-strategy: region
taskmanager.host: localhost
taskmanager.bind-host: localhost
taskmanager.numberOfTaskSlots: ${SLOTS:-2}
taskmanager.memory.process.size: ${TASK_MANAGER_MEMORY:-2g}
taskmanager.load-balance.mode: SLOTS
rest.address: localhost
rest.bind-address: localhost
rest.port: $REST_PORT
io.tmp.dirs: $CLUSTER_DIR/tmp
# Only small references go through Flink. With the default, 512, two slots need more buffers than
# exist, and Flink restarts the job because buffers are missing.
taskmanager.network.sort-shuffle.min-buffers: 64
# With Beam's runner in Flink's class path a TaskManager keeps workers for all stages of a job;
# otherwise each stage starts new ones.
classloader.resolve-order: parent-first
# Beam's batch jobs use the cluster's restart strategy; Flink ignores the job's.
restart-strategy.type: failure-rate
restart-strategy.failure-rate.max-failures-per-interval: 10
restart-strategy.failure-rate.failure-rate-interval: 60 min
restart-strategy.failure-rate.delay: 3 s
# Flink detects a dead TaskManager within seconds, and a hanging one after the timeout.
heartbeat.interval: 3000
heartbeat.timeout: 30000
slot.request.timeout: 300000
# A TaskManager keeps the jar of each ended job, 160 MB, for this number of seconds (default: 3600).
blob.service.cleanup.interval: 60
${FLINK_CONFIG:-}
YAML
  } >"$FLINK_CONF_DIR/config.yaml"
}

start_process() { # jobmanager|taskmanager NAME
  launch "$CLUSTER_DIR/pids/$2" "$FLINK_LOG_DIR/$2.out" \
    "$FLINK_DIR/flink/bin/$1.sh" start-foreground
}

add() {
  local number=1
  while [ -e "$CLUSTER_DIR/pids/taskmanager-$number" ]; do number=$((number + 1)); done
  start_process taskmanager "taskmanager-$number"
}

# Commands that use it by --job_endpoint save the seconds that starting a job server takes.
start_job_server() {
  mkdir -p "$CLUSTER_DIR/artifacts"
  launch "$CLUSTER_DIR/pids/job-server" "$FLINK_LOG_DIR/job-server.out" \
    java -jar "$FLINK_DIR/job-server.jar" --flink-master "http://localhost:$REST_PORT" \
    --artifacts-dir "$CLUSTER_DIR/artifacts" \
    --job-port "$JOB_PORT" --artifact-port 0 --expansion-port 0
}

is_ready() {
  has_task_managers "$TASK_MANAGERS" && { [ -z "$JOB_PORT" ] || listens "$JOB_PORT"; }
}

number_of() { # taskmanagers|slots-total|...
  curl -sf "http://localhost:$REST_PORT/overview" | grep -o "\"$1\":[0-9]*" | cut -d: -f2
}

has_task_managers() { # NUMBER
  [ "$(number_of taskmanagers || echo 0)" -ge "$1" ]
}

start() {
  command -v java >/dev/null || fail "java is not installed: Flink runs on Java 11 or 17."
  check_worker_env
  if runs "$CLUSTER_DIR/pids/jobmanager"; then fail "this cluster runs already: stop it first."; fi
  if listens "$REST_PORT"; then fail "port $REST_PORT is taken: set REST_PORT."; fi
  if listens "$RPC_PORT"; then fail "port $RPC_PORT is taken: set RPC_PORT."; fi
  if [ -n "$JOB_PORT" ] && listens "$JOB_PORT"; then fail "port $JOB_PORT is taken: set JOB_PORT."; fi
  configure
  start_process jobmanager jobmanager
  for _ in $(seq "$TASK_MANAGERS"); do add; done
  if [ -n "$JOB_PORT" ]; then start_job_server; fi
  wait_until 180 is_ready || {
    stop
    fail "the cluster was not ready within three minutes: see $FLINK_LOG_DIR."
  }
  status
}

status() {
  has_task_managers 0 || fail "no cluster answers on port $REST_PORT."
  echo "http://localhost:$REST_PORT: $(number_of taskmanagers) TaskManagers," \
    "$(number_of slots-available) of $(number_of slots-total) slots free"
}

pids() {
  local pidfile
  for pidfile in "$CLUSTER_DIR"/pids/*; do
    if runs "$pidfile"; then echo "${pidfile##*/} $(pid_of "$pidfile")"; fi
  done
}

stop() {
  local pidfiles=()
  mapfile -t pidfiles < <(compgen -G "$CLUSTER_DIR/pids/*")
  [ "${#pidfiles[@]}" = 0 ] || end "${pidfiles[@]}"
  end_workers "$WORKERS_DIR"
  rm -rf "$CLUSTER_DIR/tmp" "$CLUSTER_DIR/artifacts"
}

case ${1:-} in
  start) start ;;
  add) add ;;
  status) status ;;
  pids) pids ;;
  stop) stop ;;
  *) usage ;;
esac
