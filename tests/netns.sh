#!/bin/sh
# Runs a command in a user and network namespace of its own: tests/netns.sh COMMAND [ARG...]
#
# In it `lo` is up and has fd00::1 and fd00::2 besides 127.0.0.0/8, so that two processes can have an IPv6
# address each; the command may make further interfaces (it is root there, and only there) and finds
# SOFTROCE_NETNS=1 in its environment. The namespace is gone when the last process in it has ended.
#
# Needs no privilege. Exits with 77 where it cannot be done, else with the status of the command.

if [ "$#" -eq 0 ]; then
    echo "usage: $0 COMMAND [ARG...]" >&2
    exit 2
fi

skip() {
    echo "$0: skipped: $1" >&2
    exit 77
}

command -v unshare >/dev/null || skip "no unshare(1) here (package util-linux)"
command -v ip >/dev/null || skip "no ip(8) here (package iproute2)"
# Some systems allow the namespace but nothing inside it, so a step inside is part of the trial.
trial=$(unshare -Urn ip link set lo up 2>&1) ||
    skip "this system allows no network namespace to an ordinary user: $trial"
trial=$(unshare -Urn sh -c 'ip link set lo up && ip -6 address add fd00::1/128 dev lo nodad' 2>&1) ||
    skip "no IPv6 in a network namespace: $trial"

SOFTROCE_NETNS=1
export SOFTROCE_NETNS
exec unshare -Urn sh -c '
    ip link set lo up &&
    ip -6 address add fd00::1/128 dev lo nodad &&
    ip -6 address add fd00::2/128 dev lo nodad &&
    exec "$@"' netns "$@"
