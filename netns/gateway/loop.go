package gateway

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// loop accepts, opens and relays the connections of many flows on one thread. Goroutines would be simpler; two of them for
// each connection are most of what an idle one costs (5,000 took some 80 MiB), and a wait by the Go runtime's poller takes
// several changes of thread where this one takes none.
type loop struct {
	epoll, wake int // wake is an eventfd that interrupts the wait
	idle        time.Duration
	means       means
	// flows are found by slot; free are slots without one. ready have more to do at once.
	flows []*flow
	free  []int32
	ready []*flow
	now   time.Time
	swept time.Time
	// lively says that there was something to do a moment ago.
	lively bool

	// g is what the listeners accept for, until ctx ends; nil for a loop that only relays.
	g         *Gateway
	ctx       context.Context //nolint:containedctx // of what is begun by events, which have none
	listeners []listener
	// deafUntil is when the listeners are heard again; zero while they are.
	deafUntil time.Time

	mu      sync.Mutex
	queue   []func() // to be run by the loop
	stopped bool
	ended   chan struct{} // closed when nothing of it is left
}

// sweepEvery is how often flows are looked at for their time limits.
const sweepEvery = time.Second

// newLoop starts a loop; stop ends it. A flow in which nothing moves for the idle time is reset.
func newLoop(idle time.Duration) (*loop, error) {
	l := &loop{idle: idle, wake: -1, now: time.Now(), ended: make(chan struct{})}
	var err error
	if l.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if l.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err == nil {
		err = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, l.wake, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: -1})
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("make loop: %w", err)
	}
	go l.run()
	return l, nil
}

// close closes what is the loop's own.
func (l *loop) close() {
	closeListeners(l.listeners)
	l.means.pipes.close()
	unix.Close(l.epoll)
	if l.wake >= 0 {
		unix.Close(l.wake)
	}
	close(l.ended)
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

// end resets a flow.
func (l *loop) end(f *flow) { l.do(func() { l.finish(f, true) }) }

// stop resets all flows and waits for the end of the loop.
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
	<-l.ended
}

// register gives a flow its slot.
func (l *loop) register(f *flow) {
	if n := len(l.free); n > 0 {
		f.slot, l.free = l.free[n-1], l.free[:n-1]
	} else {
		f.slot, l.flows = int32(len(l.flows)), append(l.flows, nil) //nolint:gosec // bounded by descriptors
	}
	l.flows[f.slot] = f
	f.active = l.now
}

// watch has the loop hear of one end of a flow. A socket that is ready already is reported at once.
func (l *loop) watch(f *flow, e *end, side int32) error {
	const events = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET
	err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, e.fd, &unix.EpollEvent{Events: events, Fd: f.slot, Pad: side})
	return os.NewSyscallError("epoll_ctl", err)
}

// forget takes a flow out; its descriptors stay as they are. Its slot is free after the batch of events in which that
// happens.
func (l *loop) forget(f *flow) {
	f.closed = true
	l.flows[f.slot] = nil
	l.free = append(l.free, f.slot)
	if o := f.opening; o != nil && o.cancel != nil {
		o.cancel()
	}
}

// finish closes a flow.
func (l *loop) finish(f *flow, reset bool) {
	if f.closed {
		return
	}
	l.forget(f)
	f.release(reset)
	if f.ended != nil {
		f.ended(f.out.moved, f.in.moved)
	}
}

func (l *loop) run() {
	defer l.close()
	var events [256]unix.EpollEvent
	for {
		n := l.wait(events[:])
		l.now = time.Now()
		again := l.ready
		l.ready = nil
		for i := range n {
			l.notice(&events[i])
		}
		for _, f := range again {
			f.queued = false
			l.serve(f)
		}
		// Only now: until here a slot means the flow that it meant when the events were read.
		for i := range n {
			if at := firstListener - int(events[i].Fd); at >= 0 {
				l.accept(l.listeners[at])
			}
		}
		if l.runQueue() {
			return
		}
		l.sweep()
	}
}

// wait returns the number of events. It waits for one unless there is more to do, and no longer than until the next sweep.
//
// The wait is the thread's own. The Go runtime's poller would wait for the epoll instance as for any other file, and pass
// the news on by way of its scheduler: two to three changes of thread for each event, which is most of what a small
// message costs. At first the runtime is not told either (see calls_unsafe.go): the price is a processor of its that others
// can't have meanwhile, and there is one more of them than loops. A loop that has had nothing to do for a while tells it, and
// then nothing of this process runs until something happens.
func (l *loop) wait(events []unix.EpollEvent) int {
	timeout := -1 // without a flow nothing has to be swept
	switch {
	case len(l.ready) > 0:
		timeout = 0
	case !l.deafUntil.IsZero():
		timeout = int(deafFor / time.Millisecond)
	case len(l.flows) > len(l.free):
		timeout = int(max(0, sweepEvery-l.now.Sub(l.swept))/time.Millisecond) + 1
	}
	wait := unix.EpollWait
	if l.lively || timeout == 0 {
		wait = waitHere
		if timeout < 0 || timeout > lingerMillis {
			timeout = lingerMillis
		}
	}
	n, err := wait(l.epoll, events, timeout)
	if err != nil && !errors.Is(err, unix.EINTR) {
		panic(err) // the descriptor is ours: fail closed
	}
	// An interruption is the runtime's, which wants its processor.
	l.lively = n > 0 || timeout == 0
	return max(n, 0)
}

// lingerMillis is how long a loop that has just had something to do waits for more at the runtime's cost.
const lingerMillis = 20

// notice takes one event of a flow.
func (l *loop) notice(e *unix.EpollEvent) {
	if e.Fd < 0 {
		if e.Fd == -1 {
			var sink [8]byte
			readFD(l.wake, sink[:]) //nolint:errcheck // it was only to wake
		}
		return
	}
	f := l.flows[e.Fd]
	if f == nil {
		return
	}
	at := &f.client
	if e.Pad == upstreamSide {
		at = &f.upstream
	}
	at.readable = at.readable || e.Events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	at.writable = at.writable || e.Events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0
	at.ended = at.ended || e.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	if e.Events&unix.EPOLLERR != 0 && f.opening == nil {
		// A way that has ended, or that waits for the other side, would not meet the error.
		if pendingError(at.fd) != nil {
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
	if f.opening != nil {
		l.progress(f)
		return
	}
	more, err := f.turn(&l.means, l.now)
	switch {
	case err != nil:
		l.finish(f, true)
	case f.finished():
		l.finish(f, false)
	case more && !f.queued:
		f.queued = true
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

// sweep ends flows that are over a time limit.
func (l *loop) sweep() {
	if !l.deafUntil.IsZero() && l.now.After(l.deafUntil) {
		l.hear(true)
	}
	if l.now.Sub(l.swept) < sweepEvery {
		return
	}
	l.swept = l.now
	for _, f := range l.flows {
		switch {
		case f == nil:
		case f.opening != nil:
			l.expire(f)
		case l.now.Sub(f.active) > l.idle || !f.headBy.IsZero() && l.now.After(f.headBy):
			l.finish(f, true)
		default:
			f.keepAlive()
		}
	}
}
