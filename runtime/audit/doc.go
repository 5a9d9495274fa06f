// Package audit keeps the evidence of a container: an append-only log in which each record holds the hash of the one
// before, and a signed statement at the end.
//
// # The log
//
// A log is a directory with files 000001.jsonl, 000002.jsonl, ... of one record a line:
//
//	{"seq":1,"prev":"<sha256 of the line before>","time":"<RFC 3339, UTC>","type":"create","data":{...}}
//
// The keys are in this order and without spaces. The hash is that of the bytes of the line without its line feed; the
// first record's is that of [Genesis]. Changing, removing, inserting or re-ordering a record breaks the chain at that
// place, and [Verify] says where. What the chain alone can't tell is that records are missing at the end: a log that
// was finished ends with a record of type [TypeClose], and its statement names the last hash.
//
// Records are written at once and made durable in groups: a crash of the machine loses at most what was appended within
// [SyncEvery]. A torn last line, left by a crash in the middle of a write, is cut off by the next [Open] and the cut is
// recorded. When nothing can be written (a full disk), Append says so, and the next record that can be written is
// preceded by one of type [TypeGap], which says how many are missing. One process writes a log at a time (flock).
//
// # The statement
//
// An in-toto Statement v1 whose subjects are the log's files, in a DSSE envelope signed with ed25519. Its predicate,
// [PredicateType], is described by docs/evidence.schema.json. The key is made by `agentsafectl audit keygen`, readable by
// root alone, or lies elsewhere behind a command.
//
// # What it refuses
//
// It records names of environment variables, never their values, and redacts what looks like a secret in command lines
// ([Redact]); that is a net with holes, so whoever can read a log should be trusted with what the tasks were told.
// It does not protect against root of the same host before the statement is signed: who can write the log can rewrite
// it whole. Ship statements, or the log, elsewhere for that.
//
// Verifying needs the files and the public key, no network and no running container. Minimum kernel: 5.15.
//
// Rejected: a Merkle tree or a transparency log (nobody asks for inclusion proofs of one container's log), a database,
// and journald (its seal needs its own daemon, and its fields are not ours).
package audit
