package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
)

// Types of records.
const (
	TypeCreate      = "create"
	TypeRefused     = "refused" // instead of create: the profile does not grant what was asked for
	TypeStart       = "start"
	TypeExec        = "exec"
	TypeExecExit    = "exec-exit"
	TypeLimit       = "limit"
	TypeDenial      = "denial"
	TypeEgress      = "egress"
	TypeTransaction = "transaction"
	TypePromotion   = "promotion"
	TypeExit        = "exit"
	TypeGap         = "gap"       // records are missing here: nothing could be written
	TypeRecovered   = "recovered" // a torn record was cut off here
	TypeClose       = "close"     // the log is complete
)

// Genesis is what the first record's prev is the hash of.
const Genesis = "agentsafe.dev/evidence/log/v1"

// Hash is a sha256.
type Hash [sha256.Size]byte

// String is in hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// genesisHash is the prev of the first record.
func genesisHash() Hash { return sha256.Sum256([]byte(Genesis)) }

// Record is one line of a log.
type Record struct {
	Seq  uint64          `json:"seq"`
	Prev string          `json:"prev"`
	Time time.Time       `json:"time"`
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
}

// Usage is what a container used over time, in the record of its end. Point i stands for the span from i to i+1 times
// EveryMillis since the start: the most memory and processes that were seen in it, and the processor time until its end.
type Usage struct {
	EveryMillis int64    `json:"everyMillis"`
	MemoryBytes []uint64 `json:"memoryBytes"`
	CPUMillis   []int64  `json:"cpuMillis"`
	PIDs        []uint64 `json:"pids"`
}

// maxRecordBytes bounds a line: whoever reads a log reads that much at a time.
const maxRecordBytes = 1 << 20

// appendRecord appends a line without its line feed to buf.
func appendRecord(buf []byte, seq uint64, prev Hash, at time.Time, kind string, data []byte) ([]byte, error) {
	begin := len(buf)
	buf = append(buf, `{"seq":`...)
	buf = strconv.AppendUint(buf, seq, 10)
	buf = append(buf, `,"prev":"`...)
	buf = hex.AppendEncode(buf, prev[:])
	buf = append(buf, `","time":"`...)
	buf = at.UTC().AppendFormat(buf, time.RFC3339Nano)
	buf = append(buf, `","type":`...)
	name, err := json.Marshal(kind)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	buf = append(buf, name...)
	buf = append(buf, `,"data":`...)
	buf = append(buf, data...)
	buf = append(buf, '}')
	if len(buf)-begin > maxRecordBytes {
		return nil, fmt.Errorf("encode record %q: %d bytes, at most %d", kind, len(buf)-begin, maxRecordBytes)
	}
	return buf, nil
}

// parseHead reads seq and prev of a line, which must be written as appendRecord does; ok is false otherwise.
func parseHead(line []byte) (seq uint64, prev Hash, ok bool) {
	const before, between = `{"seq":`, `,"prev":"`
	if len(line) < len(before) || string(line[:len(before)]) != before {
		return 0, prev, false
	}
	rest := line[len(before):]
	digits := 0
	for digits < len(rest) && digits < 20 && rest[digits] >= '0' && rest[digits] <= '9' {
		seq = seq*10 + uint64(rest[digits]-'0')
		digits++
	}
	rest = rest[digits:]
	const hexBytes = 2 * sha256.Size
	if digits == 0 || len(rest) < len(between)+hexBytes+1 || string(rest[:len(between)]) != between {
		return 0, prev, false
	}
	rest = rest[len(between):]
	if _, err := hex.Decode(prev[:], rest[:hexBytes]); err != nil || rest[hexBytes] != '"' {
		return 0, prev, false
	}
	return seq, prev, true
}
