// Package profilefile reads profiles.Profile from YAML.
//
//	apiVersion: agentsafe.dev/v1
//	kind: Profile
//	metadata: {name: debugger, description: agent with a debugger}
//	extends: agent
//	capabilities: [CHOWN, KILL]             # the whole set, an upper bound for what the engine gives
//	syscalls: {packs: [debug], allow: [], deny: []}
//	filesystem:
//	  read: [/]
//	  execute: [/usr, $WORKSPACE]
//	  write: [/tmp, $HOME, $WORKSPACE]
//	  hide: [/root/.ssh]
//	  workspace: {mode: overlay, promote: manual, quota: 2GiB, paths: [/work], background: kill}
//	network: {mode: engine, allowPrivate: [10.96.0.0/12]}     # with the mode gateway: allow, deny, ruleSets, ...
//	host: {namespaces: [pid], mounts: [/dev/snd], devices: ["c 10:229 rw"], sysctls: []}
//	environment: {allow: [], deny: ["*_TOKEN"], set: {CI: "1"}}
//	limits: {memory: 4GiB, pids: 1024, cpus: 2, wallClock: 15m, outputBytes: 16MiB}
//	exec: {transaction: auto, commit: always, wallClock: 5m}
//	trust: {untrustedInput: true, secrets: false, externalWrite: false, waive: []}
//	evidence: {mode: on, onFull: stop}
//	enforcement: {landlock: best-effort}
//
// testdata/full.yaml has every key.
//
// A file extends a built-in profile and may loosen it: it is the administrator's. A key that is there replaces the
// parent's value as a whole, lists too; a key that is not keeps it.
//
// The parser is strict, because a rule that nobody reads is a hole: unknown and repeated keys, several documents,
// anchors, and keys of later versions that nothing enforces yet are errors. Errors begin with file and line.
//
// Rejected: decoding into structs by reflection. Its errors name Go types, and it can't tell an absent key from an
// empty one, which here is the difference between the parent's list and none.
package profilefile
