#!/bin/sh
# Holds an IPv4 address on an interface while it runs, and tells the network each second where it is:
#
#   tenure run address --after 'address.sh remove 192.0.2.10/24 eth0' -- address.sh hold 192.0.2.10/24 eth0
#
# It needs ip (iproute2), arping (iputils-arping), and the capabilities NET_ADMIN and NET_RAW.
set -eu
if [ $# -ne 3 ]; then
  echo "usage: address.sh hold|remove ADDRESS/BITS INTERFACE" >&2
  exit 2
fi
address=$2 interface=$3

# remove fails if the address is still there.
remove() {
  ip address delete "$address" dev "$interface" 2>/dev/null || true
  [ -z "$(ip -oneline address show dev "$interface" to "${address%/*}/32")" ]
}

case $1 in
hold)
  # The address goes first of all, and what still runs is ended after that.
  trap 'remove && exit 0' TERM INT
  ip address replace "$address" dev "$interface"
  while :; do
    arping -q -c 1 -A -I "$interface" "${address%/*}" || true
    sleep 1 &
    wait $! || true
  done
  ;;
remove) remove ;;
*) echo "address.sh: $1 is neither hold nor remove" >&2; exit 2 ;;
esac
