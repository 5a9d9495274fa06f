#!/bin/bash
# A task of an agent under agentsafe, with no engine: it mends a small C library, runs its tests and commits; then it
# tries what it must not do. Exit status 0 only if the work was done and every attempt was refused.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# A test puts a wrapper here that has directories of its own.
ctl=${AGENTSAFECTL:-$here/../bin/agentsafectl}
runs=${AGENTSAFECTL_RUNS:-/run/agentsafectl}

[ "$(id -u)" = 0 ] || { echo "demo: needs root (the task itself runs as the owner of its folder)" >&2; exit 1; }
for tool in git make cc unshare; do
  command -v "$tool" >/dev/null || { echo "demo: $tool is missing" >&2; exit 1; }
done

work=$(mktemp -d /tmp/agentsafe-demo.XXXXXX)
trap 'rm -rf "$work"' EXIT
owner=${SUDO_UID:-1000}:${SUDO_GID:-1000}
chmod 0755 "$work"

say() { printf '\n=== %s\n' "$*"; }
show() { printf '$ %s\n' "$*"; }
fail() { printf '\ndemo: FAILED: %s\n' "$*" >&2; exit 1; }

say "A repository with a bug, owned by uid ${owner%:*}"
repo=$work/duration
cp -r "$here/demo/duration" "$repo"
git -C "$repo" init -q -b main
git -C "$repo" add -A
git -C "$repo" -c user.name=demo -c user.email=demo@example.invalid commit -qm 'duration: parse 1h30m'
install -m 0755 "$here/demo/agent.sh" "$work/agent.sh"
cc -O1 -Wall -o "$work/probe" "$here/demo/probe.c"
# What the agent brings along lies in its folder, as it would after a download; git does not see it.
install -d "$repo/.tools"
cp "$work/agent.sh" "$work/probe" "$repo/.tools/"
echo .tools >>"$repo/.git/info/exclude"
chown -R "$owner" "$repo"
ls -ln "$repo"

say "The agent works on it, in a container that sees this folder and the host's programs"
show "cd $repo && agentsafectl run --timeout 2m -- .tools/agent.sh"
(cd "$repo" && "$ctl" run --timeout 2m -- .tools/agent.sh) || fail "the task did not do its work"

say "The work is there, and it belongs to who owned the folder"
ls -ln "$repo"
foreign=$(find "$repo" ! -uid "${owner%:*}")
[ -z "$foreign" ] || fail "files of another owner: $foreign"
grep -q __builtin_mul_overflow "$repo/duration.c" || fail "duration.c was not edited"

say "The same attempts, first as root on this host (in namespaces that are thrown away)"
show "unshare --mount --net probe shadow mount ptrace"
# A probe that can't succeed anywhere would prove nothing below.
if control=$(unshare --mount --net --propagation private "$work/probe" shadow mount ptrace); then
  printf '%s\n' "$control"
  fail "the probe is refused everything on the host, too"
fi
printf '%s\n' "$control"
[ "$(grep -c ALLOWED <<<"$control")" = 3 ] || fail "the probe works only in part on this host"

say "... then by the agent, under agentsafe"
show "cd $repo && agentsafectl run -- .tools/probe"
(cd "$repo" && "$ctl" run -- .tools/probe) || fail "something was not refused"

say "... and by root in a folder of root's, under agentsafe"
install -d "$work/root-folder"
cp "$work/probe" "$work/root-folder/"
show "cd $work/root-folder && agentsafectl run -- ./probe"
(cd "$work/root-folder" && "$ctl" run -- ./probe) || fail "something was not refused to uid 0"

say "A task that does not end, and leaves a process behind, loses both"
show "agentsafectl run --timeout 1s -- sh -c 'sleep 31415 & sleep 31415'"
status=0
(cd "$repo" && "$ctl" run --timeout 1s -- sh -c 'sleep 31415 & sleep 31415') || status=$?
[ "$status" = 124 ] || fail "exit status $status, want 124"
for p in /proc/[0-9]*/cmdline; do
  [ "$(tr '\0' ' ' <"$p" 2>/dev/null)" != "sleep 31415 " ] || fail "a process is left: $p"
done

say "Nothing is left"
show "ls $runs"
ls -A "$runs"
[ -z "$(ls -A "$runs")" ] || fail "a run directory is left"
printf '\ndemo: passed\n'
