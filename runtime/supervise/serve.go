package supervise

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/agentsafe/agentsafe/runtime/container"
	"github.com/agentsafe/agentsafe/runtime/supervise/wire"
)

// maxCallers bounds the connections that are served at the same time.
const maxCallers = 256

// accept serves whoever connects to the container's socket.
func (s *Supervisor) accept() {
	places := make(chan struct{}, maxCallers)
	for {
		conn, err := s.socket.AcceptUnix()
		if err != nil {
			return // closed
		}
		places <- struct{}{}
		s.group.Go(func() {
			defer func() { <-places }()
			defer conn.Close()
			defer context.AfterFunc(s.ctx, func() { conn.Close() })()
			s.serve(conn)
		})
	}
}

// serve answers one caller's requests until it hangs up.
func (s *Supervisor) serve(conn *net.UnixConn) {
	for {
		var r wire.Request
		var reply wire.Reply
		var give []*os.File
		files, err := wire.Receive(conn, &r)
		if err == nil && r.Op == wire.OpTransact && r.Transact != nil {
			var ns *os.File
			if reply.Transaction, ns, err = s.Transact(r.Transact); err == nil {
				give = []*os.File{ns}
			}
		} else if err == nil {
			err = s.handle(&r, &reply, files)
		} else if errors.Is(err, wire.ErrClosed) || errors.Is(err, net.ErrClosed) {
			return
		}
		for _, f := range files {
			f.Close()
		}
		if err != nil {
			reply.Error = err.Error()
		}
		err = wire.Send(conn, &reply, give...)
		for _, f := range give {
			f.Close()
		}
		if err != nil {
			return
		}
		if r.Op == wire.OpClose {
			s.shutdown()
			return
		}
	}
}

// handle carries out one request.
func (s *Supervisor) handle(r *wire.Request, reply *wire.Reply, files []*os.File) error {
	switch {
	case r.Op == wire.OpBegin:
		return s.Begin()
	case r.Op == wire.OpExec && r.Exec != nil && len(files) == 1:
		return s.Exec(r.Exec, files[0])
	case r.Op == wire.OpAbandon:
		return s.Abandon(r.Abandon)
	case r.Op == wire.OpExited && r.Exited != nil:
		reply.TimedOut = s.Exited(r.Exited.PID, r.Exited.Status)
		return nil
	case r.Op == wire.OpPump && r.Pump != nil && len(files) == 2*len(r.Pump.Names):
		var outs []container.Output
		for i, name := range r.Pump.Names {
			outs = append(outs, container.Output{Name: name, From: files[2*i], To: files[2*i+1]})
		}
		return s.Pump(r.Pump.PID, outs)
	case r.Op == wire.OpRecord && r.Record != nil:
		return s.requested(r.Record)
	case r.Op == wire.OpRefusals:
		var err error
		reply.Refusals, err = s.Refusals(r.Since, r.Branch)
		return err
	case r.Op == wire.OpClose:
		return s.finish(context.Background())
	}
	return fmt.Errorf("request %q with %d descriptors: not known", r.Op, len(files))
}

// goneCheck is how often the monitor looks whether its container's state is still there.
const goneCheck = 30 * time.Second

// Serve is the monitor program: it takes the launch message from conn, supervises that container and returns when the
// container is deleted. Errors before it is in charge go to the caller of launch, too.
func Serve(conn *net.UnixConn, version string, warn func(string)) error {
	var r wire.Request
	files, err := wire.Receive(conn, &r)
	if errors.Is(err, wire.ErrClosed) {
		return nil // the creation has failed before it came to us
	}
	if err == nil && r.Op == wire.OpRefused && r.Refused != nil {
		var reply wire.Reply
		if err = RecordRefusal(Options{Version: version})(r.Refused); err != nil {
			reply.Error = err.Error()
		}
		return errors.Join(err, wire.Send(conn, &reply))
	}
	if err == nil && (r.Op != wire.OpLaunch || r.Launch == nil || len(files) == 0) {
		err = errors.New("want one launch message with the listening socket")
	}
	if err != nil {
		return err
	}
	o := Options{Version: version, Warn: warn}
	if len(files) > 1 {
		o.Stderr = files[1]
	}
	s, rt, err := launched(r.Launch, files[0], o)
	for _, f := range files {
		f.Close()
	}
	var reply wire.Reply
	if err != nil {
		reply.Error = err.Error()
	}
	if serr := wire.Send(conn, &reply); err == nil && serr != nil {
		err = serr
	}
	conn.Close()
	if err != nil {
		return err
	}
	defer rt.Close()
	defer s.c.Close()
	tick := time.NewTicker(goneCheck)
	defer tick.Stop()
	for {
		select {
		case <-s.closed:
			s.Wait()
			return nil
		case <-tick.C:
			var st unix.Stat_t
			if unix.Fstat(int(s.c.Dir().Fd()), &st) != nil || st.Nlink == 0 {
				warn("the container's state has been removed")
				s.shutdown()
			}
		}
	}
}

func launched(l *wire.Launch, socket *os.File, o Options) (*Supervisor, *container.Runtime, error) {
	rt, err := container.Open(container.Options{Root: l.Root, SystemdCgroup: l.Systemd, Warn: o.Warn})
	if err != nil {
		return nil, nil, err
	}
	c, err := rt.Load(l.ID)
	if err == nil {
		var s *Supervisor
		if s, err = New(c, socket, o); err == nil {
			return s, rt, nil
		}
		c.Close()
	}
	rt.Close()
	return nil, nil, err
}
