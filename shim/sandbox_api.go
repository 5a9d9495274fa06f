package shim

import (
	"context"
	"runtime"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/agentsafe/agentsafe/shim/metrics"
	"github.com/agentsafe/agentsafe/shim/wire"
)

// States of a sandbox. Source: cri-api, runtime.v1.PodSandboxState.
const (
	sandboxReady    = "SANDBOX_READY"
	sandboxNotReady = "SANDBOX_NOTREADY"
)

// registerSandbox offers containerd.runtime.sandbox.v1. Every request has the sandbox's id in field 1.
func (s *Service) registerSandbox(server *ttrpc.Server) {
	server.RegisterService("containerd.runtime.sandbox.v1.Sandbox", &ttrpc.ServiceDesc{Methods: map[string]ttrpc.Method{
		"CreateSandbox":   received(s.apiCreate),
		"StartSandbox":    ofSandbox(s, s.apiStart),
		"Platform":        ofSandbox(s, s.apiPlatform),
		"StopSandbox":     ofSandbox(s, s.apiStop),
		"WaitSandbox":     ofSandbox(s, s.apiWait),
		"SandboxStatus":   ofSandbox(s, s.apiStatus),
		"PingSandbox":     ofSandbox(s, s.apiPing),
		"ShutdownSandbox": received(s.apiShutdown),
		"SandboxMetrics":  ofSandbox(s, s.apiMetrics),
	}})
}

// received adapts a handler to ttrpc.
func received(h func(context.Context, wire.Message) (wire.Builder, error)) ttrpc.Method {
	return method(func(ctx context.Context, e *emptypb.Empty) (*emptypb.Empty, error) {
		m, err := wire.Received(e)
		if err != nil {
			return nil, invalidArgument("%s", err)
		}
		out, err := h(ctx, m)
		if err != nil {
			return nil, err
		}
		return out.Sent(), nil
	})
}

// ofSandbox adapts a handler that works on the sandbox.
func ofSandbox(s *Service, h func(context.Context, *sandbox, wire.Message) (wire.Builder, error)) ttrpc.Method {
	return received(func(ctx context.Context, m wire.Message) (wire.Builder, error) {
		b, err := s.getSandbox(m.String(1))
		if err != nil {
			return nil, err
		}
		return h(ctx, b, m)
	})
}

func (s *Service) apiCreate(_ context.Context, m wire.Message) (wire.Builder, error) {
	const bundle, options, netns = 2, 4, 5
	var packed anypb.Any
	if err := proto.Unmarshal(m.Bytes(options), &packed); err != nil {
		return nil, invalidArgument("sandbox options: %s", err)
	}
	pod, err := parsePod(&packed)
	if err != nil {
		return nil, err
	}
	return nil, s.createSandbox(m.String(1), m.String(bundle), m.String(netns), pod)
}

func (s *Service) apiStart(ctx context.Context, b *sandbox, _ wire.Message) (wire.Builder, error) {
	if err := b.start(ctx, s.cfg.Namespace); err != nil {
		return nil, err
	}
	return wire.Builder(nil).Number(1, uint64(b.running())).Time(2, b.created), nil //nolint:gosec // pids fit
}

func (s *Service) apiPlatform(context.Context, *sandbox, wire.Message) (wire.Builder, error) {
	data, err := proto.Marshal(platform(runtime.GOARCH))
	return wire.Builder(nil).Bytes(1, data), err
}

func (s *Service) apiStop(ctx context.Context, b *sandbox, m wire.Message) (wire.Builder, error) {
	const timeout, usual = 2, 10
	seconds := m.Number(timeout)
	if seconds == 0 {
		seconds = usual
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second) //nolint:gosec // a uint32 on the wire
	defer cancel()
	return nil, b.stop(ctx)
}

func (s *Service) apiWait(ctx context.Context, b *sandbox, _ wire.Message) (wire.Builder, error) {
	select {
	case <-b.done:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return wire.Builder(nil).Number(1, uint64(b.status)).Time(2, b.exitedAt), nil //nolint:gosec // statuses fit
}

func (s *Service) apiStatus(_ context.Context, b *sandbox, _ wire.Message) (wire.Builder, error) {
	state := sandboxNotReady
	pid := b.running()
	if pid != 0 {
		state = sandboxReady
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return wire.Builder(nil).String(1, b.id).Number(2, uint64(pid)).String(3, state).Time(5, b.created).Time(6, b.exitedAt), nil //nolint:gosec // pids fit
}

func (s *Service) apiPing(context.Context, *sandbox, wire.Message) (wire.Builder, error) {
	return nil, nil
}

// apiShutdown removes the sandbox and ends the shim, now or when its last container is gone. Without a sandbox it ends a
// shim whose sandbox could not be made.
func (s *Service) apiShutdown(ctx context.Context, m wire.Message) (wire.Builder, error) {
	b, err := s.getSandbox(m.String(1))
	if err == nil {
		if err := b.remove(ctx); err != nil {
			return nil, err
		}
		s.mu.Lock()
		s.sandbox = nil
		s.mu.Unlock()
	}
	s.mu.Lock()
	s.sandboxGone = true
	s.mu.Unlock()
	s.EndIfIdle()
	return nil, nil
}

func (s *Service) apiMetrics(_ context.Context, b *sandbox, _ wire.Message) (wire.Builder, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		return nil, failedPrecondition("sandbox %q has not been started", b.id)
	}
	stats, err := b.c.Stats()
	if err != nil {
		return nil, err
	}
	var message proto.Message = metrics.V1(stats)
	if b.c.State().Cgroup.Unified {
		message = metrics.V2(stats)
	}
	packed, err := bareAny(message)
	if err != nil {
		return nil, err
	}
	data, err := proto.Marshal(packed)
	if err != nil {
		return nil, err
	}
	return wire.Builder(nil).Bytes(1, wire.Builder(nil).Time(1, time.Now()).String(2, b.id).Bytes(3, data)), nil
}
