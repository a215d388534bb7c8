#!/bin/busybox sh
# The guest's first process: the host's files with memory laid over them, so that everything can be written and nothing
# stays; then inside.sh. What is exchanged with the host is in the folder that the kernel's command line names.
export PATH=/bin:/sbin:/usr/bin:/usr/sbin
bb=/bin/busybox
fail() {
  echo "guest: $1"
  $bb poweroff -f
}
$bb mount -t proc proc /proc || fail "no /proc"
for word in $($bb cat /proc/cmdline); do
  case $word in exchange=*) exchange=${word#exchange=} ;; esac
done
$bb mount -t tmpfs -o size=60% memory /mnt || fail "no memory file system"
$bb mkdir /mnt/host /mnt/changes /mnt/work /mnt/root
$bb mount -t hostfs -o / host /mnt/host || fail "no host files"
$bb mount -t overlay -o lowerdir=/mnt/host,upperdir=/mnt/changes,workdir=/mnt/work overlay /mnt/root || fail "no overlay"
root=/mnt/root
$bb mount --move /proc $root/proc
$bb mount -t sysfs sysfs $root/sys
$bb mount -t devtmpfs devices $root/dev
$bb mkdir -p $root/dev/pts $root/dev/shm
$bb mount -t devpts terminals $root/dev/pts
$bb mount -t tmpfs shm $root/dev/shm
$bb mount -t tmpfs run $root/run
$bb mkdir /mnt/root/run/exchange
$bb mount -t hostfs -o "$exchange" exchange $root/run/exchange || fail "no folder to exchange files"
exec $bb chroot $root /bin/bash /run/exchange/inside
