package wire

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is the name of the supervisor's socket in the state directory.
const Socket = "monitor.sock"

// MaxBytes bounds one message. A packet socket takes what fits into its buffer, 208 KiB by default.
const MaxBytes = 128 << 10

// maxFiles bounds the descriptors beside a message.
const maxFiles = 4

// Operations.
const (
	// OpLaunch is the first message to a monitor program, over the socket that it was started with.
	OpLaunch = "launch"
	// OpRefused is the only message to a monitor program whose container was not created.
	OpRefused = "refused"
	// OpBegin comes right before the container's program is executed.
	OpBegin = "begin"
	// OpTransact begins the transaction of an exec; the reply's descriptor is the mount namespace to join. OpAbandon takes
	// back one whose exec came to nothing.
	OpTransact = "transact"
	OpAbandon  = "abandon"
	// OpExec comes when a process has joined the container; its pidfd is the message's descriptor.
	OpExec = "exec"
	// OpExited comes from the parent of a process when it has ended.
	OpExited = "exited"
	// OpPump comes with the streams of a process that has just been started (number 0: the first one), as pairs of
	// descriptors: a pipe, and what its content goes to.
	OpPump = "pump"
	// OpRecord asks for a line in the evidence.
	OpRecord = "record"
	// OpRefusals asks what the container has been refused since a mark.
	OpRefusals = "refusals"
	// OpClose asks the supervisor to finish: every process of the container has ended.
	OpClose = "close"
)

// Request is a message to a supervisor.
type Request struct {
	Op     string  `json:"op"`
	Launch *Launch `json:"launch,omitempty"`
	Exec   *Exec   `json:"exec,omitempty"`
	Exited *Exited `json:"exited,omitempty"`
	Record *Record `json:"record,omitempty"`
	Pump   *Pump   `json:"pump,omitempty"`
	// Since is the mark of OpRefusals; Branch leaves out what is known to be another command's.
	Since  uint64 `json:"since,omitempty"`
	Branch string `json:"branch,omitempty"`

	Transact *Transact `json:"transact,omitempty"`
	Abandon  int       `json:"abandon,omitempty"`

	Refused *Refused `json:"refused,omitempty"`
}

// Refused is a container that its profile refuses, for the evidence.
type Refused struct {
	ID     string `json:"id"`
	Bundle string `json:"bundle"`
	// Annotations are those that evidence tells of.
	Annotations map[string]string `json:"annotations,omitempty"`
	Profile     string            `json:"profile"`
	Args        []string          `json:"args"`
	EnvNames    []string          `json:"envNames,omitempty"`
	Cwd         string            `json:"cwd,omitempty"`
	UID         uint32            `json:"uid"`
	GID         uint32            `json:"gid"`
	// What was asked for, the rule that refuses it, and what would allow it.
	What  string `json:"what"`
	Rule  string `json:"rule"`
	Allow string `json:"allow"`
	// Caller is the program that asked, "" if it is not known.
	Caller string `json:"caller,omitempty"`
}

// Launch tells a monitor program which container it is for. Descriptors: the listening socket, and the
// container's standard error unless that is a terminal.
type Launch struct {
	Root string `json:"root"`
	ID   string `json:"id"`
	// Systemd says that systemd makes the cgroups.
	Systemd bool `json:"systemd,omitempty"`
}

// Exec is a process that has joined a container.
type Exec struct {
	ID          string   `json:"id"` // the engine's name for it, or one of ours
	PID         int      `json:"pid"`
	Args        []string `json:"args"`
	EnvNames    []string `json:"envNames,omitempty"`
	Cwd         string   `json:"cwd,omitempty"`
	UID         uint32   `json:"uid"`
	GID         uint32   `json:"gid"`
	Terminal    bool     `json:"terminal,omitempty"`
	Transaction string   `json:"transaction,omitempty"`
	// TransactionN is the number of the transaction that OpTransact has begun for it; 0 for none.
	TransactionN int `json:"transactionN,omitempty"`
	// WallClock ends the process and its descendants after this time, 0 for none.
	WallClock time.Duration `json:"wallClock,omitempty"`
	// Cgroup is a directory that holds this process and its descendants alone, "" if there is none.
	Cgroup string `json:"cgroup,omitempty"`
	// ParentReports says that OpExited will come; otherwise the supervisor finds the exit status out by itself.
	ParentReports bool `json:"parentReports,omitempty"`
}

// Exited is the end of a process as its parent saw it.
type Exited struct {
	PID    int `json:"pid"`
	Status int `json:"status"` // 128+n for signal n
}

// Pump names the streams of a process, one for each pair of descriptors.
type Pump struct {
	PID   int      `json:"pid"`
	Names []string `json:"names"`
}

// Record is a line for the evidence: a type of package audit and its data.
type Record struct {
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
}

// Refusals are what a container has been refused: each thing once, with how often it was, as package denials writes it.
type Refusals struct {
	List []json.RawMessage `json:"list,omitempty"`
	// Omitted is how many of them did not fit.
	Omitted int `json:"omitted,omitempty"`
	// Next is the mark for what comes after these; 0 where nobody listens.
	Next uint64 `json:"next"`
}

// Transact says which exec a transaction is for.
type Transact struct {
	Args []string `json:"args"`
	// Discard throws away what it writes.
	Discard bool `json:"discard,omitempty"`
	// PID is who is about to start it: if that ends before the process is known, the transaction does, too.
	PID int `json:"pid"`
}

// Reply answers a request; Error is empty if it was done.
type Reply struct {
	Error string `json:"error,omitempty"`
	// Refusals answers OpRefusals.
	Refusals *Refusals `json:"refusals,omitempty"`
	// TimedOut answers OpExited: the process's own time limit has ended it.
	TimedOut bool `json:"timedOut,omitempty"`
	// Transaction answers OpTransact: its number.
	Transaction int `json:"transaction,omitempty"`
}

// Send sends one message. The files stay the caller's.
func Send(conn *net.UnixConn, v any, files ...*os.File) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode message: %w", err)
	}
	if len(data) > MaxBytes {
		return fmt.Errorf("send message: %d bytes, at most %d: %w", len(data), MaxBytes, unix.EMSGSIZE)
	}
	var rights []byte
	if len(files) > 0 {
		fds := make([]int, len(files))
		for i, f := range files {
			fds[i] = int(f.Fd())
		}
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := conn.WriteMsgUnix(data, rights, nil); err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	return nil
}

// ErrClosed says that the other side has closed the connection.
var ErrClosed = errors.New("the other side has closed the connection")

// Receive receives one message into v. The caller owns the files, also if there is an error beside them.
func Receive(conn *net.UnixConn, v any) ([]*os.File, error) {
	length, err := pending(conn)
	if err != nil {
		return nil, fmt.Errorf("receive message: %w", err)
	}
	buf := make([]byte, min(length, MaxBytes))
	oob := make([]byte, unix.CmsgSpace(maxFiles*4))
	n, oobn, flags, _, err := conn.ReadMsgUnix(buf, oob)
	if err != nil {
		return nil, fmt.Errorf("receive message: %w", err)
	}
	files, err := takeFiles(oob[:oobn])
	switch {
	case err != nil:
		return files, err
	case n == 0:
		return files, ErrClosed
	case flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0:
		return files, fmt.Errorf("receive message: it is longer than %d bytes or has more than %d descriptors", MaxBytes, maxFiles)
	}
	if err := json.Unmarshal(buf[:n], v); err != nil {
		return files, fmt.Errorf("decode message: %w", err)
	}
	return files, nil
}

// pending waits for the next message and returns how long it is. Room for the longest one, in a program that lives as long
// as one command does, would cost more than all that is said: each page of it is touched for the first time.
func pending(conn *net.UnixConn) (length int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	werr := raw.Read(func(fd uintptr) bool {
		for {
			length, _, err = unix.Recvfrom(int(fd), nil, unix.MSG_PEEK|unix.MSG_TRUNC|unix.MSG_DONTWAIT)
			if !errors.Is(err, unix.EINTR) {
				return !errors.Is(err, unix.EAGAIN)
			}
		}
	})
	if werr != nil {
		return 0, werr
	}
	return length, err
}

// takeFiles makes files of the descriptors that came with a message; net sets close-on-exec on receipt.
func takeFiles(oob []byte) ([]*os.File, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("receive descriptors: %w", err)
	}
	var files []*os.File
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return files, fmt.Errorf("receive descriptors: %w", err)
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "received"))
		}
	}
	return files, nil
}

// Call sends a request and waits for it to be done, at most for the time given.
func Call(conn *net.UnixConn, limit time.Duration, r *Request, files ...*os.File) error {
	_, err := Ask(conn, limit, r, files...)
	return err
}

// Ask sends a request and waits for its reply, at most for limit. The error is the other side's.
func Ask(conn *net.UnixConn, limit time.Duration, r *Request, files ...*os.File) (*Reply, error) {
	reply, received, err := AskFiles(conn, limit, r, files...)
	for _, f := range received {
		f.Close()
	}
	return reply, err
}

// AskFiles is Ask for a reply with descriptors, which the caller owns.
func AskFiles(conn *net.UnixConn, limit time.Duration, r *Request, files ...*os.File) (*Reply, []*os.File, error) {
	if err := conn.SetDeadline(time.Now().Add(limit)); err != nil {
		return nil, nil, fmt.Errorf("call supervisor: %w", err)
	}
	if err := Send(conn, r, files...); err != nil {
		return nil, nil, err
	}
	var reply Reply
	received, err := Receive(conn, &reply)
	if err == nil && reply.Error != "" {
		err = errors.New(reply.Error)
	}
	if err != nil {
		for _, f := range received {
			f.Close()
		}
		return nil, nil, err
	}
	return &reply, received, nil
}

// maxArgsBytes bounds a command line in a message and in the evidence.
const maxArgsBytes = 32 << 10

// Shorten returns a command line, or a list of names, that fits into a message; what was cut is said in its last word.
func Shorten(words []string) []string {
	room := maxArgsBytes
	for i, w := range words {
		if room -= len(w) + 1; room >= 0 {
			continue
		}
		out := append([]string(nil), words[:i]...)
		keep := min(len(w), max(room+len(w), 0))
		return append(out, w[:keep]+fmt.Sprintf("[... %d bytes and %d words more]", len(w)-keep, len(words)-i-1))
	}
	return words
}
