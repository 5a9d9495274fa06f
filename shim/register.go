package shim

import (
	"context"

	"github.com/containerd/ttrpc"
)

// Register offers the service to containerd, as task API v3 and v2: both have the same messages on the wire; and the
// sandbox API.
func (s *Service) Register(server *ttrpc.Server) {
	s.registerSandbox(server)
	for _, name := range []string{"containerd.task.v2.Task", "containerd.task.v3.Task"} {
		server.RegisterService(name, &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
			"State":      method(s.State),
			"Create":     method(s.Create),
			"Start":      method(s.Start),
			"Delete":     method(s.Delete),
			"Pids":       method(s.Pids),
			"Pause":      method(s.Pause),
			"Resume":     method(s.Resume),
			"Checkpoint": method(s.Checkpoint),
			"Kill":       method(s.Kill),
			"Exec":       method(s.Exec),
			"ResizePty":  method(s.ResizePty),
			"CloseIO":    method(s.CloseIO),
			"Update":     method(s.Update),
			"Wait":       method(s.Wait),
			"Stats":      method(s.Stats),
			"Connect":    method(s.Connect),
			"Shutdown":   method(s.Shutdown),
		}})
	}
}

// method adapts a handler to ttrpc.
func method[Request, Response any](h func(context.Context, *Request) (*Response, error)) ttrpc.Method {
	return func(ctx context.Context, unmarshal func(any) error) (any, error) {
		r := new(Request)
		if err := unmarshal(r); err != nil {
			return nil, err
		}
		out, err := h(ctx, r)
		if err != nil {
			return nil, toStatus(err)
		}
		return out, nil
	}
}
