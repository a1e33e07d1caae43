#!/usr/bin/env bash
# The first process of a machine of machines.py, in namespaces of its own: what a machine starts when it
# boots. node.sh NAME ADDRESS FOLDER SHARED...: FOLDER has its settings; SHARED are the folders that all see.
set -euo pipefail
name=$1 address=$2 folder=$3
shift 3
hostname "$name"
# Memory disks and a home of its own, with the shared folders put back where they are below these.
mount -t tmpfs tmpfs /run
mkdir -p /run/{sshd,munge,slurmd,shared}
chmod 711 /run/munge
for number in 0 1 2 3 4 5 6 7; do mknod "/run/gpu$number" c 1 3; done # Slurm wants devices
for shared in "$folder" "$@"; do
  mkdir -p "/run/shared$shared"
  mount --rbind "$shared" "/run/shared$shared"
done
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount --bind "/run/shared$folder/home" ~root # what ssh, pip and others have there is not read
for shared in "$folder" "$@"; do
  mkdir -p "$shared"
  mount --rbind "/run/shared$shared" "$shared"
done
mount --bind "$folder/hosts.$name" /etc/hosts
mount --bind "$folder/ssh_config" /etc/ssh/ssh_config
mount -t sysfs sysfs /sys # shows this machine's network
mount -t tmpfs tmpfs /sys/fs/cgroup # slurmd looks for it

until [ -e /sys/class/net/eth0 ]; do sleep 0.05; done # the cable
ip addr add "$address/24" dev eth0
ip link set lo up
ip link set eth0 up
ip route add default via "${address%.*}.254"
# As Docker leaves it: a network of the same address on every machine.
ip link add docker0 type bridge
ip addr add 172.17.0.1/16 dev docker0
ip link set docker0 up

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
