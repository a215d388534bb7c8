#!/busybox sh
# The guest's first process, in its first file system (see make.sh): the modules, then the host's files with memory laid
# over them, so that everything can be written and nothing stays; then inside.sh.
bb=/busybox
fail() {
  echo "guest: $1"
  $bb poweroff -f
}
$bb mkdir /proc /sys /dev /host /memory /root
$bb mount -t proc proc /proc || fail "no /proc"
$bb mount -t sysfs sysfs /sys || fail "no /sys"
$bb mount -t devtmpfs devices /dev || fail "no /dev"
for module in /modules/*.ko; do $bb insmod "$module" || fail "$module cannot be loaded"; done
# What the host has does not change meanwhile, so it may be kept.
how=trans=virtio,version=9p2000.L,msize=1048576
$bb mount -t 9p -o "ro,cache=loose,$how" host /host || fail "no host files"
$bb mount -t tmpfs -o size=60% memory /memory || fail "no memory file system"
$bb mkdir /memory/changes /memory/work
$bb mount -t overlay -o lowerdir=/host,upperdir=/memory/changes,workdir=/memory/work overlay /root || fail "no overlay"
for system in proc sys dev; do $bb mount --move /$system /root/$system; done
$bb mkdir -p /root/dev/pts /root/dev/shm
$bb mount -t devpts terminals /root/dev/pts
$bb mount -t tmpfs shm /root/dev/shm
$bb mount -t tmpfs run /root/run
$bb mkdir /root/run/exchange
$bb mount -t 9p -o "rw,cache=none,$how" exchange /root/run/exchange || fail "no folder to exchange files"
exec $bb chroot /root /bin/bash /run/exchange/inside
