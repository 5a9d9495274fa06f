package shim

import (
	"context"

	events "github.com/containerd/containerd/api/events"
)

// watchOOM reports each time that the container runs out of memory, beside everything else: a container that ends before
// the watch is in place is caught by lastOOM.
func (t *Task) watchOOM() {
	ctx, stop := context.WithCancel(context.Background())
	t.stopOOM, t.oom = stop, make(chan struct{})
	go func() {
		defer close(t.oom)
		counts, err := t.c.WatchOOM(ctx)
		if err != nil {
			t.service.cfg.Log.Debug(t.id, "no OOM events: "+err.Error())
			return
		}
		for range counts {
			t.sendOOM()
		}
	}()
}

func (t *Task) sendOOM() {
	t.mu.Lock()
	t.ooms++
	t.mu.Unlock()
	t.publish(topicOOM, &events.TaskOOM{ContainerID: t.id})
}

// lastOOM reports what the watch has not seen, before the exit is reported (containerd 8893: the event was lost).
func (t *Task) lastOOM() {
	t.stopOOM()
	<-t.oom
	t.mu.Lock()
	sent := t.ooms
	t.mu.Unlock()
	if sent > 0 {
		return
	}
	if n, err := t.c.OOMKills(); err == nil && n > 0 {
		t.sendOOM()
	}
}
