package audit

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Types of the statement. Source: in-toto attestation framework v1, DSSE v1.
const (
	StatementType = "https://in-toto.io/Statement/v1"
	PredicateType = "https://agentsafe.dev/evidence/run/v1"
	PayloadType   = "application/vnd.in-toto+json"
)

// StatementFile is the statement's name beside the log's files.
const StatementFile = "statement.dsse.json"

// Statement is an in-toto Statement v1 about a log.
type Statement struct {
	Type          string    `json:"_type"`
	Subject       []Subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     Predicate `json:"predicate"`
}

// Subject is a file of the log.
type Subject struct {
	Name   string            `json:"name"`
	Digest map[string]string `json:"digest"`
}

// Predicate says what the log is about; docs/evidence.schema.json describes it.
type Predicate struct {
	Container Container `json:"container"`
	Log       LogHead   `json:"log"`
	Result    Result    `json:"result"`
	// Runtime is the version of agentsafe.
	Runtime string `json:"runtime"`
}

// Container is what was run.
type Container struct {
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	// Engine, Image and ImageDigest are what the engine told, "" if nothing.
	Engine      string `json:"engine,omitempty"`
	Image       string `json:"image,omitempty"`
	ImageDigest string `json:"imageDigest,omitempty"`
	SpecHash    string `json:"specHash"`
	Profile     string `json:"profile"`
	PolicyHash  string `json:"policyHash"`
	// Owner, Task and TraceParent come from annotations: who it was run for, and the W3C trace context.
	Owner       string `json:"owner,omitempty"`
	Task        string `json:"task,omitempty"`
	TraceParent string `json:"traceparent,omitempty"`
	// Inputs are artefacts that an annotation asked for, as they were before the program ran.
	Inputs []Input `json:"inputs,omitempty"`
}

// Input is a file or directory of the container.
type Input struct {
	Path string `json:"path"`
	// Directory says that SHA256 is not that of a file's content but that of sha256sum's output for all regular files
	// below, sorted by name.
	Directory bool   `json:"directory,omitempty"`
	SHA256    string `json:"sha256"`
	Files     int    `json:"files"`
	Bytes     int64  `json:"bytes"`
}

// LogHead is the end of the log.
type LogHead struct {
	Records uint64 `json:"records"`
	Head    string `json:"head"`
	Gaps    int    `json:"gaps"`
}

// ReasonRefused is the reason of a container that was not created.
const ReasonRefused = "refused"

// Result is how the container ended.
type Result struct {
	ExitStatus int       `json:"exitStatus"` // 128+n for signal n, -1 if it is unknown
	Reason     string    `json:"reason,omitempty"`
	Finished   time.Time `json:"finished"`
	Execs      int       `json:"execs"`
}

// NewStatement makes the statement for a log as it is.
func NewStatement(w *Writer, p *Predicate) *Statement {
	seq, head := w.Head()
	p.Log = LogHead{Records: seq, Head: head.String(), Gaps: w.gaps}
	s := &Statement{Type: StatementType, PredicateType: PredicateType, Predicate: *p}
	for _, segment := range w.Segments() {
		s.Subject = append(s.Subject, Subject{segment.Name, map[string]string{"sha256": segment.SHA256.String()}})
	}
	return s
}

// Envelope is a DSSE envelope.
type Envelope struct {
	PayloadType string      `json:"payloadType"`
	Payload     []byte      `json:"payload"` // base64 in JSON
	Signatures  []Signature `json:"signatures"`
}

// Signature is one signature of an envelope.
type Signature struct {
	KeyID string `json:"keyid"`
	Sig   []byte `json:"sig"` // base64 in JSON
}

// preAuth is what is signed. Source: DSSE v1, protocol.md, PAE.
func preAuth(payloadType string, payload []byte) []byte {
	out := []byte("DSSEv1 " + strconv.Itoa(len(payloadType)) + " " + payloadType + " " + strconv.Itoa(len(payload)) + " ")
	return append(out, payload...)
}

// Sign puts a statement into an envelope.
func Sign(s *Statement, signer Signer) (*Envelope, error) {
	payload, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encode statement: %w", err)
	}
	sig, keyID, err := signer.Sign(preAuth(PayloadType, payload))
	if err != nil {
		return nil, fmt.Errorf("sign statement: %w", err)
	}
	return &Envelope{PayloadType, payload, []Signature{{keyID, sig}}}, nil
}

// ErrSignature says that no signature of an envelope is one of the key's.
var ErrSignature = errors.New("the signature is not this key's, or the statement was changed")

// Open checks an envelope's signature and returns the statement in it.
func (e *Envelope) Open(key ed25519.PublicKey) (*Statement, error) {
	if e.PayloadType != PayloadType {
		return nil, fmt.Errorf("open statement: payload of type %q instead of %q", e.PayloadType, PayloadType)
	}
	signed := preAuth(e.PayloadType, e.Payload)
	good := false
	for _, s := range e.Signatures {
		good = good || len(s.Sig) == ed25519.SignatureSize && ed25519.Verify(key, signed, s.Sig)
	}
	if !good {
		return nil, fmt.Errorf("open statement: %w", ErrSignature)
	}
	dec := json.NewDecoder(bytes.NewReader(e.Payload))
	var s Statement
	if err := dec.Decode(&s); err != nil {
		return nil, fmt.Errorf("open statement: %w", err)
	}
	if s.Type != StatementType || s.PredicateType != PredicateType {
		return nil, fmt.Errorf("open statement: %q about %q is not a statement about a log", s.Type, s.PredicateType)
	}
	return &s, nil
}

// LogSubject says which container a log is about, by its first record, which is the one of its creation or refusal; "" if
// that can't be read.
func LogSubject(dir string) (id string, created time.Time) {
	var d Container
	err := Read(dir, func(rec *Record, _ []byte) error {
		if rec.Type == TypeCreate || rec.Type == TypeRefused {
			if json.Unmarshal(rec.Data, &d) != nil {
				d = Container{}
			}
		}
		return errStop
	})
	if !errors.Is(err, errStop) {
		return "", time.Time{}
	}
	return d.ID, d.Created
}

// Matches compares a statement with what Verify has found, and says what differs. Records after those that were signed
// are no difference: promotions come later.
func (s *Statement) Matches(dir string, r *Report) ([]Finding, error) {
	want := s.Predicate.Log
	if r.Records < want.Records {
		return []Finding{{Seq: r.Records + 1, What: fmt.Sprintf("the log ends with record %d, but %d were signed: it was cut", r.Records, want.Records)}}, nil
	}
	var out []Finding
	err := Read(dir, func(rec *Record, line []byte) error {
		if rec.Seq == want.Records {
			if got := hashOf(line); got != want.Head {
				out = append(out, Finding{Seq: rec.Seq, What: "it is not the record that was signed"})
			}
			return errStop
		}
		return nil
	})
	if err != nil && !errors.Is(err, errStop) {
		return out, err
	}
	return out, nil
}

var errStop = errors.New("stop")

// WriteEnvelope puts an envelope beside the log, atomically.
func WriteEnvelope(w *Writer, e *Envelope) error {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode statement: %w", err)
	}
	const temp = "." + StatementFile
	dir := int(w.dir.Fd())
	fd, err := unix.Openat(dir, temp, unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("write statement: %w", err)
	}
	f := os.NewFile(uintptr(fd), temp)
	_, err = f.Write(append(data, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = unix.Renameat(dir, temp, dir, StatementFile)
	}
	if err != nil {
		return fmt.Errorf("write statement: %w", err)
	}
	return w.dir.Sync()
}

// ReadEnvelope reads the statement beside a log; the error is os.ErrNotExist if there is none.
func ReadEnvelope(dir string) (*Envelope, error) {
	f, err := openLog(dir, StatementFile)
	if err != nil {
		return nil, fmt.Errorf("read statement: %w", err)
	}
	defer f.Close()
	const most = 4 << 20
	data, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return nil, fmt.Errorf("read statement: %w", err)
	}
	var e Envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, fmt.Errorf("read statement: %w", err)
	}
	return &e, nil
}

func encodeKey(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
