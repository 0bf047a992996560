# shellcheck shell=bash
# Functions that cluster.sh and pool.sh share: paths, and processes with pid files.

root=$(CDPATH='' cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
FLINK_DIR=${FLINK_DIR:-$root/.cache/flink}
WORKER_ENV=${WORKER_ENV:-$root/.venv}

fail() {
  echo "$(basename -- "$0"): $1" >&2
  exit 1
}

usage() { # prints the comment at the top of the script
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" >&2
  exit 2
}

check_worker_env() {
  [ -x "$FLINK_DIR/bin/boot" ] || fail "nothing is installed in $FLINK_DIR: run install.sh."
  [ -x "$WORKER_ENV/bin/pip" ] || fail "$WORKER_ENV has no pip: run install.sh."
}

wait_until() { # SECONDS COMMAND...
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.2
  done
}

listens() { # PORT
  (exec 3<>"/dev/tcp/localhost/$1") 2>/dev/null
}

# A pid file holds the pid and the start time of the process, since pids are reused.
started_at() { # PID
  local line stat
  { read -r line <"/proc/$1/stat"; } 2>/dev/null || return 1
  # The second field, the name, may contain spaces: count the fields after it.
  read -ra stat <<<"${line##*)}"
  [ "${stat[0]}" != Z ] || return 1
  echo "${stat[19]}"
}

runs() { # PIDFILE
  local pid start
  read -r pid start 2>/dev/null <"$1" || return 1
  [ "$(started_at "$pid")" = "$start" ]
}

pid_of() { # PIDFILE
  cut -d' ' -f1 "$1"
}

# Starts a process that outlives this terminal.
launch() { # PIDFILE LOG COMMAND...
  local pidfile=$1 log=$2
  shift 2
  setsid "$@" >>"$log" 2>&1 </dev/null &
  echo "$! $(started_at $!)" >"$pidfile"
}

gone() {
  ! runs "$1"
}

# Sends SIGTERM to processes, then waits for each in order, and kills those that do not exit.
end() { # PIDFILE...
  local pidfile
  for pidfile; do
    if runs "$pidfile"; then kill "$(pid_of "$pidfile")" 2>/dev/null || true; fi
  done
  for pidfile; do
    if ! wait_until 10 gone "$pidfile"; then
      kill -KILL "$(pid_of "$pidfile")" 2>/dev/null || true
      wait_until 10 gone "$pidfile" || true
    fi
    rm -f "$pidfile"
  done
}

no_workers() { # WORKERS_DIR
  ! compgen -G "$1/worker.*" >/dev/null
}

# Waits for workers, which exit when their TaskManager has exited; kills them after 15 seconds.
end_workers() { # WORKERS_DIR
  local session
  wait_until 15 no_workers "$1" && return
  for session in "$1"/worker.*/session; do
    [ -f "$session" ] || continue
    pkill -KILL -s "$(cat "$session")" || true
  done
  rm -rf "$1"/worker.*
}
