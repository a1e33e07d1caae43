#!/usr/bin/env bash
# The first process of a machine of machines.py, in namespaces of its own: what a machine starts when it
# boots. node.sh NAME FOLDER SHARED...: FOLDER has its settings; SHARED are the folders that all see.
set -euo pipefail
name=$1 folder=$2
shift 2
hostname "$name"
# Memory disks of its own, with the shared folders put back where they are below /tmp.
mount -t tmpfs tmpfs /run
mkdir -p /run/{sshd,munge,slurmd,shared}
chmod 711 /run/munge
for shared in "$folder" "$@"; do
  mkdir -p "/run/shared$shared"
  mount --rbind "$shared" "/run/shared$shared"
done
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs tmpfs /sys/fs/cgroup # slurmd looks for it
for shared in "$folder" "$@"; do
  mkdir -p "$shared"
  mount --rbind "/run/shared$shared" "$shared"
done
mount --bind "$folder/hosts.$name" /etc/hosts
mount --bind "$folder/ssh_config" /etc/ssh/ssh_config

export SLURM_CONF="$folder/slurm.conf"
/usr/sbin/sshd -D -f "$folder/sshd_config" -E "$folder/log/sshd.$name" &
cp "$folder/munge.key" /run/munge.key
munged --force --foreground --key-file=/run/munge.key --log-file="$folder/log/munge.$name" \
  --pid-file=/run/munged.pid --seed-file=/run/munge.seed > /dev/null 2>&1 &
until [ -S /run/munge/munge.socket.2 ]; do sleep 0.05; done
if [ -e "$folder/controller.$name" ]; then slurmctld -D > "$folder/log/slurmctld" 2>&1 & fi
slurmd -D -N "$name" > "$folder/log/slurmd.$name" 2>&1 &
touch "$folder/up.$name"
while :; do wait -n || true; sleep 0.1; done # the first process waits for orphans
