package layer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of requests: they come from whoever speaks for a task, which may ask for ever.
const (
	maxRequests     = 1000
	maxRequestPaths = 1000
	maxRequestText  = 4 << 10
	maxRequestBytes = 8 << 20
)

const requestsDir = "requests"

// RequestState says what became of a request.
type RequestState string

// The states of a request.
const (
	RequestOpen     RequestState = "open"
	RequestApproved RequestState = "approved" // and written to the host
	RequestRejected RequestState = "rejected"
)

// Request asks a person to promote something. It grants nothing: whoever approves it plans the promotion anew, and is
// refused if what would be written is not what was asked for any more.
type Request struct {
	Version int       `json:"version"`
	N       int       `json:"n"`
	Created time.Time `json:"created"`
	// By says who asks, Message why: text of the task's, which is hostile.
	By      string `json:"by"`
	Message string `json:"message,omitempty"`
	// Paths are as PlanPromotion takes them; Digest is that of the plan at the time; Items counts what it would write.
	Paths  []string     `json:"paths,omitempty"`
	Digest string       `json:"digest"`
	Items  int          `json:"items"`
	State  RequestState `json:"state"`
	// Decided is when the state has changed.
	Decided time.Time `json:"decided,omitzero"`
}

// ErrNoRequest says that there is no request of that number.
var ErrNoRequest = errors.New("no such request")

// AddRequest keeps a request for the promotion of paths, numbered from 1. The plan that it is about comes with it.
func (l *Layers) AddRequest(by, message string, paths []string) (*Request, *PromotionPlan, error) {
	if len(paths) > maxRequestPaths || len(message) > maxRequestText {
		return nil, nil, fmt.Errorf("request promotion: more than %d paths or %d bytes of message: %w", maxRequestPaths, maxRequestText, unix.EMSGSIZE)
	}
	plan, err := l.PlanPromotion(paths)
	if err != nil {
		return nil, nil, err
	}
	if len(plan.Conflicts()) == 0 && len(plan.Taken()) == 0 {
		return nil, plan, fmt.Errorf("request promotion: %w", errLeft)
	}
	old, err := l.Requests()
	if err != nil {
		return nil, nil, err
	}
	if len(old) >= maxRequests {
		return nil, nil, fmt.Errorf("request promotion: %d requests wait already: %w", len(old), unix.EDQUOT)
	}
	r := &Request{
		Version: 1, N: len(old) + 1, Created: time.Now().UTC(), By: by, Message: message, Paths: paths,
		Digest: plan.Digest, Items: len(plan.Taken()), State: RequestOpen,
	}
	if err := l.makeDir(nil, requestsDir); err != nil {
		return nil, nil, err
	}
	return r, plan, l.saveRequest(r)
}

// Requests lists the requests, oldest first.
func (l *Layers) Requests() ([]Request, error) {
	dir, err := l.open(nil, requestsDir)
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	var out []Request
	for n := 1; n <= maxRequests; n++ {
		r, err := readRequest(dir, n)
		if errors.Is(err, unix.ENOENT) {
			break // they are numbered without gaps
		}
		if err != nil {
			return nil, err
		}
		out = append(out, *r)
	}
	return out, nil
}

// Request returns one request. The error is ErrNoRequest if there is none.
func (l *Layers) Request(n int) (*Request, error) {
	all, err := l.Requests()
	if err != nil {
		return nil, err
	}
	if n < 1 || n > len(all) {
		return nil, fmt.Errorf("request %d of container %q: %w", n, l.ID, ErrNoRequest)
	}
	return &all[n-1], nil
}

// Decide notes what became of an open request.
func (l *Layers) Decide(n int, state RequestState) error {
	r, err := l.Request(n)
	if err != nil {
		return err
	}
	if r.State != RequestOpen {
		return fmt.Errorf("request %d of container %q was %s at %s", n, l.ID, r.State, r.Decided.Format(time.RFC3339))
	}
	r.State, r.Decided = state, time.Now().UTC()
	return l.saveRequest(r)
}

func requestName(n int) string { return strconv.Itoa(n) + ".json" }

func (l *Layers) saveRequest(r *Request) error {
	dir, err := l.open(nil, requestsDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	return writeFile(dir, requestName(r.N), r)
}

func readRequest(dir *os.File, n int) (*Request, error) {
	fd, err := unix.Openat(int(dir.Fd()), requestName(n), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("read request %d: %w", n, err)
	}
	f := os.NewFile(uintptr(fd), requestName(n))
	defer f.Close()
	var r Request
	if err := json.NewDecoder(io.LimitReader(f, maxRequestBytes)).Decode(&r); err != nil {
		return nil, fmt.Errorf("read request %d: %w", n, err)
	}
	r.N = n
	return &r, nil
}
