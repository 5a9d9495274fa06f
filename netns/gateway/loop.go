package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// loop moves the bytes of many flows on one thread. Goroutines would be simpler, and two of them for each connection are
// most of what an idle connection costs: 5,000 of them took some 80 MiB.
type loop struct {
	epoll, wake int // wake is an eventfd that interrupts the wait
	// file is the epoll instance as the Go runtime's poller waits for it, until deadline. A wait of our own would keep a
	// processor from other goroutines until the runtime notices, ten milliseconds later at worst.
	file     *os.File
	deadline time.Time
	idle     time.Duration
	pipes    pipePool
	// flows are found by slot; free are slots without one. ready have more to do at once.
	flows []*flow
	free  []int32
	ready []*flow
	now   time.Time
	swept time.Time

	mu      sync.Mutex
	queue   []func() // to be run by the loop
	stopped bool
}

// sweepEvery is how often flows are looked at for their time limits.
const sweepEvery = time.Second

// newLoop starts a loop; stop ends it. A flow in which nothing moves for the idle time is reset.
func newLoop(idle time.Duration) (*loop, error) {
	l := &loop{idle: idle, wake: -1}
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := unix.SetNonblock(l.epoll, true); err != nil { // for the poller
		return nil, os.NewSyscallError("fcntl", err)
	}
	l.file = os.NewFile(uintptr(l.epoll), "epoll")
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, l.wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1})
	}
	if err == nil {
		err = l.file.SetReadDeadline(time.Time{}) // which fails where the poller doesn't have it
	}
	if err != nil {
		l.closeFiles()
		return nil, fmt.Errorf("make loop: %w", err)
	}
	go l.run()
	return l, nil
}

func (l *loop) closeFiles() {
	l.file.Close()
	if l.wake >= 0 {
		unix.Close(l.wake)
	}
}

// do runs a function in the loop; after stop it does nothing and returns false.
func (l *loop) do(f func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	if l.queue = append(l.queue, f); len(l.queue) == 1 {
		unix.Write(l.wake, binary.NativeEndian.AppendUint64(nil, 1)) //nolint:errcheck // a full counter wakes as well
	}
	return true
}

// start takes over two connections and everything that f says; it closes them in any case.
func (l *loop) start(f *flow, client, upstream *net.TCPConn) error {
	var err, uerr error
	f.client.fd, err = takeFD(client)
	f.upstream.fd, uerr = takeFD(upstream)
	if err = errors.Join(err, uerr); err == nil && !l.do(func() { l.add(f) }) {
		err = net.ErrClosed
	}
	if err != nil {
		f.release(true)
	}
	return err
}

// end resets a flow.
func (l *loop) end(f *flow) { l.do(func() { l.finish(f, true) }) }

// stop resets all flows and ends the loop.
func (l *loop) stop() {
	l.do(func() {
		for _, f := range l.flows {
			if f != nil {
				l.finish(f, true)
			}
		}
		l.mu.Lock()
		l.stopped = true
		l.mu.Unlock()
	})
}

// add registers a flow. Sockets that are ready already are reported at once.
func (l *loop) add(f *flow) {
	if n := len(l.free); n > 0 {
		f.slot, l.free = l.free[n-1], l.free[:n-1]
	} else {
		f.slot, l.flows = int32(len(l.flows)), append(l.flows, nil) //nolint:gosec // bounded by descriptors
	}
	l.flows[f.slot] = f
	f.active = l.now
	const events = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET
	err := f.out.decide()
	for side, e := range []*end{&f.client, &f.upstream} {
		if err == nil {
			err = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, e.fd, &unix.EpollEvent{Events: events, Fd: f.slot, Pad: int32(side)}) //nolint:gosec // 0 or 1
		}
	}
	if err != nil {
		l.finish(f, true)
	}
}

// finish closes a flow. Its slot is free after the batch of events in which that happens.
func (l *loop) finish(f *flow, reset bool) {
	if f.closed {
		return
	}
	f.closed = true
	f.release(reset)
	l.flows[f.slot] = nil
	l.free = append(l.free, f.slot)
	if f.ended != nil {
		f.ended(f.out.moved, f.in.moved)
	}
}

func (l *loop) run() {
	defer l.closeFiles()
	var events [256]unix.EpollEvent
	raw, err := l.file.SyscallConn()
	if err != nil {
		panic(err) // the file is ours: fail closed
	}
	for {
		n := l.wait(raw, events[:])
		l.now = time.Now()
		again := l.ready
		l.ready = nil
		for i := range n {
			l.notice(&events[i])
		}
		for _, f := range again {
			l.serve(f)
		}
		// Only now: until here a slot means the flow that it meant when the events were read.
		if l.runQueue() {
			return
		}
		l.sweep()
	}
}

// wait returns the number of events. It waits for one unless there is more to do, and no longer than until the next sweep.
func (l *loop) wait(raw syscall.RawConn, events []unix.EpollEvent) (n int) {
	var err error
	look := func(fd uintptr) bool {
		n, err = unix.EpollWait(int(fd), events, 0)
		return n > 0 || err != nil
	}
	if len(l.ready) > 0 {
		look(uintptr(l.epoll))
	} else {
		var next time.Time // without a flow nothing has to be swept
		if len(l.flows) > len(l.free) {
			next = l.swept.Add(sweepEvery)
		}
		if next != l.deadline {
			l.deadline = next
			l.file.SetReadDeadline(next) //nolint:errcheck // it did at first
		}
		if perr := raw.Read(look); perr != nil && !errors.Is(perr, os.ErrDeadlineExceeded) {
			panic(perr) // the file is ours: fail closed
		}
	}
	if err != nil && !errors.Is(err, unix.EINTR) {
		panic(err) // likewise
	}
	return max(n, 0)
}

// notice takes one event.
func (l *loop) notice(e *unix.EpollEvent) {
	if e.Fd < 0 {
		var sink [8]byte
		unix.Read(l.wake, sink[:]) //nolint:errcheck // it was only to wake
		return
	}
	f := l.flows[e.Fd]
	if f == nil {
		return
	}
	at := &f.client
	if e.Pad == 1 {
		at = &f.upstream
	}
	at.readable = at.readable || e.Events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	at.writable = at.writable || e.Events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0
	if e.Events&unix.EPOLLERR != 0 {
		// A way that has ended, or that waits for the other side, would not meet the error.
		if code, err := unix.GetsockoptInt(at.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || code != 0 {
			l.finish(f, true)
			return
		}
	}
	l.serve(f)
}

func (l *loop) serve(f *flow) {
	if f.closed {
		return
	}
	more, err := f.turn(&l.pipes, l.now)
	switch {
	case err != nil:
		l.finish(f, true)
	case f.finished():
		l.finish(f, false)
	case more:
		l.ready = append(l.ready, f)
	}
	if f.out.filter == nil && f.in.filter == nil {
		f.headBy = time.Time{}
	}
}

// runQueue runs what others have asked for; true ends the loop.
func (l *loop) runQueue() bool {
	l.mu.Lock()
	queue := l.queue
	l.queue = nil
	l.mu.Unlock()
	for _, f := range queue {
		f()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopped
}

// sweep resets flows that are over a time limit.
func (l *loop) sweep() {
	if l.now.Sub(l.swept) < sweepEvery {
		return
	}
	l.swept = l.now
	for _, f := range l.flows {
		if f != nil && (l.now.Sub(f.active) > l.idle || !f.headBy.IsZero() && l.now.After(f.headBy)) {
			l.finish(f, true)
		}
	}
}
