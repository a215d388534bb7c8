#!/bin/bash
# Inside the guest: two interfaces joined by a cable, jxr0 (10.77.0.1) and jxr1 (10.77.0.2), with a RoCE device (rxe0,
# rxe1) and an iWARP device (siw0, siw1) on each; then the command.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
finish() {
  sync
  echo "$1" >/run/exchange/status.part
  mv /run/exchange/status.part /run/exchange/status
  /bin/busybox poweroff -f
}
exec </dev/null >>/run/exchange/output 2>&1
ulimit -l unlimited -n 65536
hostname rdma-guest
set -e
trap 'echo "guest: setting the network up failed"; finish 125' ERR
ip link set lo up
ip link add jxr0 mtu 4200 type veth peer name jxr1 mtu 4200
# Both ends are in one namespace: packets between them are to cross the cable nevertheless.
for interface in all jxr0 jxr1; do
  for setting in accept_local=1 rp_filter=0 arp_ignore=1 arp_announce=2; do
    echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/$interface/${setting%=*}"
  done
done
for end in 0 1; do
  ip address add "10.77.0.$((end + 1))/24" dev "jxr$end"
  ip link set "jxr$end" up
  rdma link add "rxe$end" type rxe netdev "jxr$end"
  rdma link add "siw$end" type siw netdev "jxr$end"
done
trap - ERR
set +e
setsid -w /bin/bash /run/exchange/command
finish $?
