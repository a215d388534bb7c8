#!/bin/bash
# Inside the guest: three cables, and a device at each end: RoCE's rxe0 on jxr0 (10.77.0.1) and rxe1 on jxr1 (10.77.0.2),
# rxe2 on jxt0 (10.79.0.1) and rxe3 on jxt1 (10.79.0.2), iWARP's siw0 on jxs0 (10.78.0.1) and siw1 on jxs1 (10.78.0.2).
# Then the command.
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
echo "127.0.0.1 localhost rdma-guest" >/etc/hosts  # Gloo looks its own hostname up
set -e
trap 'echo "guest: setting the network up failed"; finish 125' ERR
ip link set lo up
ip link add jxr0 mtu 4200 type veth peer name jxr1 mtu 4200
ip link add jxt0 mtu 4200 type veth peer name jxt1 mtu 4200
ip link add jxs0 mtu 4200 type veth peer name jxs1 mtu 4200
# All ends are in one namespace: packets between them are to cross the cable nevertheless.
for interface in all jxr0 jxr1 jxs0 jxs1 jxt0 jxt1; do
  for setting in accept_local=1 rp_filter=0 arp_announce=2; do
    echo "${setting#*=}" >"/proc/sys/net/ipv4/conf/$interface/${setting%=*}"
  done
done
for end in 0 1; do
  ip address add "10.77.0.$((end + 1))/24" dev "jxr$end"
  ip address add "10.79.0.$((end + 1))/24" dev "jxt$end"
  ip address add "10.78.0.$((end + 1))" peer "10.78.0.$((2 - end))" dev "jxs$end"
  ip link set "jxr$end" up
  ip link set "jxs$end" up
  ip link set "jxt$end" up
  rdma link add "rxe$end" type rxe netdev "jxr$end"
  rdma link add "rxe$((end + 2))" type rxe netdev "jxt$end"
  rdma link add "siw$end" type siw netdev "jxs$end"
done
# RoCE's device names the interface that its packets leave by. iWARP's has the kernel's TCP, which takes the short way
# through `lo` to an address of its own, where no cable could delay or drop anything: between these two it is the last.
for end in 0 1; do
  ip rule add pref 10 iif "jxs$end" lookup local
  ip rule add pref 20 from "10.78.0.$((end + 1))" to "10.78.0.$((2 - end))" lookup main
done
ip rule add pref 30 lookup local
ip rule delete pref 0
trap - ERR
set +e
setsid -w /bin/bash /run/exchange/command
finish $?
