#!/bin/bash
# Bring up a Docker daemon on Debian as root, without an init system. Safe to run twice.
# Prints one line and exits 0 when a daemon answers; exits 3 with the reason when none can be had.
set -u
log=${DOCKERD_LOG:-/tmp/dockerd.log}
pid_file=/var/run/docker.pid
wait_s=${DOCKERD_WAIT_S:-60}

give_up() {
  echo "dockerd: $*" >&2
  [ -s "$log" ] && tail -n 20 "$log" >&2
  exit 3
}
answers() { docker version --format '{{.Server.Version}}' 2>/dev/null; }

# A pid file counts only while a process of that name really has the pid.
drop_if_stale() { # FILE NAME
  local pid
  [ -f "$1" ] || return 0
  pid=$(tr -dc 0-9 <"$1")
  if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$2" ] && ! grep -q '^State:[[:space:]]*Z' "/proc/$pid/status"; then
    return 0
  fi
  rm -f "$1"
}

if version=$(answers); then
  echo "dockerd: server $version was already running"
  exit 0
fi
[ "$(id -u)" = 0 ] || give_up "no daemon answers, and only root can start one"
if ! command -v dockerd >/dev/null; then
  export DEBIAN_FRONTEND=noninteractive
  apt-get -qq update || give_up "the package lists could not be fetched"
  apt-get -qq install -y --no-install-recommends docker.io iptables >/dev/null || give_up "docker.io could not be installed"
fi
if ! mountpoint -q /sys/fs/cgroup; then
  mount -t tmpfs -o mode=0755 cgroup /sys/fs/cgroup || give_up "control groups cannot be mounted"
  while read -r name _ _ enabled; do
    [ "$enabled" = 1 ] || continue
    mkdir -p "/sys/fs/cgroup/$name"
    mount -t cgroup -o "$name" cgroup "/sys/fs/cgroup/$name" || rmdir "/sys/fs/cgroup/$name"
  done < <(grep -v '^#' /proc/cgroups)
fi
drop_if_stale "$pid_file" dockerd
drop_if_stale /var/run/docker/containerd/containerd.pid containerd

# Started by hand: the distribution's service script raises a limit that a container may not raise.
# In a session of its own, so that it outlives this shell.
setsid dockerd --log-level warn --pidfile "$pid_file" </dev/null >"$log" 2>&1 &
daemon=$!
for ((tick = 0; tick < wait_s * 5; tick++)); do
  if version=$(answers); then
    echo "dockerd: server $version started, pid $daemon"
    exit 0
  fi
  kill -0 "$daemon" 2>/dev/null || give_up "it ended while starting"
  sleep 0.2
done
kill "$daemon"
give_up "it did not answer within $wait_s s"
