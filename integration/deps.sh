#!/bin/bash
# Installs the Debian packages that building, testing and the demo need; with the argument long those of test-long, too, with bench those of bench-network. Silent and without network when all are there.
# Services are kept from starting: the tests start their own engines on private sockets and leave the machine's alone.
set -euo pipefail

packages=(
  gcc libc6-dev make git ca-certificates pkg-config libseccomp-dev   # build
  runc crun docker.io containerd podman conmon                       # peers and engines
  docker-compose buildah catatonit                                   # what people drive them with
  containernetworking-plugins iptables nftables iproute2 uidmap slirp4netns passt # their networks
  busybox-static mmdebstrap                                          # images without a registry
  strace qemu-user-static                                            # faults injected, arm64 emulated
  e2fsprogs umoci                                                     # quotas of layers, layers in images
  procps python3 python3-pip gdb curl                                  # what tasks of the tests use
  chromium fonts-liberation fonts-dejavu-core libnss3-tools           # reports are looked at; a browser's trust
  wget bind9-dnsutils netcat-openbsd openssh-client openssh-server     # clients of the network, and a server
)
[ "${1:-}" != long ] || packages+=(qemu-system-x86 e2fsprogs          # a virtual machine of its own
  cargo default-jdk-headless maven gradle junit4 ruby rake ruby-minitest # toolchains that do real work under profiles
  libmaven-compiler-plugin-java libmaven-jar-plugin-java libmaven-resources-plugin-java libsurefire-java)

# Other sources of node bring npm along, and Debian's conflicts with them.
[ "${1:-}" != long ] || command -v npm >/dev/null || packages+=(nodejs npm)

[ "${1:-}" != bench ] || packages+=(squid-openssl)                   # what the gateway is compared with

missing=()
for p in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "deps: installing ${missing[*]}" >&2
log=$(mktemp)
policy=/usr/sbin/policy-rc.d
made_policy=
cleanup() { [ -z "$made_policy" ] || rm -f "$policy"; rm -f "$log"; }
trap cleanup EXIT
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 0755 "$policy"
  made_policy=yes
fi

install() {
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}" >"$log" 2>&1 </dev/null
}
# Package lists that are absent or out of date make the first try fail; a machine with good lists saves the update.
install || { apt-get update >"$log" 2>&1 && install; } || { cat "$log" >&2; exit 1; }
