package shim

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	ttrpcevents "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// maxQueue bounds the events that wait for a containerd that is away. A task makes six; the oldest are dropped first.
const maxQueue = 1 << 14

// Publisher sends events to containerd, one after the other, in the order of Publish. While containerd is away it keeps
// them and tries again.
type Publisher struct {
	address, namespace string
	warn               func(message string)

	mu      sync.Mutex
	queue   []*types.Envelope
	dropped int
	wake    chan struct{}
	closing chan struct{}
	done    chan struct{}
	client  *ttrpc.Client // of the sending goroutine
}

// NewPublisher returns a Publisher for containerd's ttrpc socket (a path). Close ends it.
func NewPublisher(address, namespace string, warn func(message string)) *Publisher {
	p := &Publisher{
		address: strings.TrimPrefix(address, "unix://"), namespace: namespace, warn: warn,
		wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}),
	}
	go p.run()
	return p
}

// Publish queues an event. It never blocks.
func (p *Publisher) Publish(topic string, event proto.Message) {
	value, err := proto.Marshal(event)
	if err != nil {
		p.warn("encode event " + topic + ": " + err.Error())
		return
	}
	e := &types.Envelope{
		Timestamp: timestamppb.Now(), Namespace: p.namespace, Topic: topic,
		// The bare name, as containerd's own: not the form with a host in front that anypb makes.
		Event: &anypb.Any{TypeUrl: string(event.ProtoReflect().Descriptor().FullName()), Value: value},
	}
	p.mu.Lock()
	if len(p.queue) >= maxQueue {
		p.queue = p.queue[1:]
		p.dropped++
	}
	p.queue = append(p.queue, e)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Close sends what is queued, for as long as ctx lasts, and ends the Publisher.
func (p *Publisher) Close(ctx context.Context) {
	close(p.closing)
	select {
	case <-p.done:
	case <-ctx.Done():
	}
}

func (p *Publisher) next() *types.Envelope {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dropped > 0 {
		p.warn("containerd was away for too long: the oldest events are lost")
		p.dropped = 0
	}
	if len(p.queue) == 0 {
		return nil
	}
	return p.queue[0]
}

func (p *Publisher) sent(e *types.Envelope) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) > 0 && p.queue[0] == e {
		p.queue[0] = nil
		p.queue = p.queue[1:]
	}
}

func (p *Publisher) run() {
	defer close(p.done)
	closing := false
	const firstDelay, lastDelay = 10 * time.Millisecond, 2 * time.Second
	delay := firstDelay
	for {
		e := p.next()
		if e == nil {
			if closing {
				return
			}
			select {
			case <-p.wake:
			case <-p.closing:
				closing = true
			}
			continue
		}
		err := p.send(e)
		if err == nil || !isAway(err) {
			if err != nil {
				p.warn("containerd refuses event " + e.Topic + ": " + err.Error())
			}
			p.sent(e)
			delay = firstDelay
			continue
		}
		time.Sleep(delay)
		delay = min(2*delay, lastDelay)
	}
}

// isAway tells a containerd that can't be reached from one that refuses.
func isAway(err error) bool {
	var refused interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &refused) {
		return true
	}
	c := refused.GRPCStatus().Code()
	return c == codes.Unavailable || c == codes.DeadlineExceeded || c == codes.Canceled || c == codes.Aborted
}

// sendTime bounds one attempt.
const sendTime = 5 * time.Second

func (p *Publisher) send(e *types.Envelope) error {
	if p.client == nil {
		conn, err := net.DialTimeout("unix", p.address, sendTime) //nolint:noctx // a local socket, with its own limit
		if err != nil {
			return err
		}
		p.client = ttrpc.NewClient(conn)
	}
	ctx, cancel := context.WithTimeout(context.Background(), sendTime)
	defer cancel()
	_, err := ttrpcevents.NewTTRPCEventsClient(p.client).Forward(ctx, &ttrpcevents.ForwardRequest{Envelope: e})
	if err != nil {
		p.client.Close()
		p.client = nil
	}
	return err
}
