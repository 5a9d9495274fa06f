package report

import (
	"fmt"
	"strings"

	"github.com/agentsafe/agentsafe/cmd/agentsafectl/profileview"
	"github.com/agentsafe/agentsafe/profiles"
	"github.com/agentsafe/agentsafe/runtime/audit"
	"github.com/agentsafe/agentsafe/runtime/container"
)

// record takes one record in.
func (rd *reader) record(rec *audit.Record) error {
	r := rd.r
	switch rec.Type {
	case audit.TypeCreate:
		rd.create(rec)
	case audit.TypeStart:
		r.Started = rec.Time
		var d struct {
			Inputs []audit.Input `json:"inputs"`
		}
		if decode(rec, &d) {
			r.Container.Inputs = d.Inputs
		}
	case audit.TypeExec:
		rd.exec(rec)
	case audit.TypeExecExit:
		rd.execExit(rec)
	case audit.TypeTransaction:
		t := Transaction{Time: rec.Time}
		if decode(rec, &t) {
			r.Transactions = append(r.Transactions, t)
		}
	case audit.TypePromotion:
		p := Promotion{Time: rec.Time}
		if decode(rec, &p) && rd.room("promotions", len(r.Promotions), maxEvents) {
			r.Promotions = append(r.Promotions, p)
		}
	case audit.TypeEgress:
		rd.egress(rec)
	case audit.TypeDenial:
		rd.denial(rec)
	case audit.TypeExit:
		rd.exit(rec)
	case audit.TypeRefused:
		rd.create(rec)
		r.Refused = true
		rd.event(rec)
	case audit.TypeLimit, audit.TypeGap, audit.TypeRecovered:
		rd.event(rec)
	case audit.TypeClose:
	default:
		r.Omitted["records of type "+rec.Type]++
	}
	return nil
}

func (rd *reader) create(rec *audit.Record) {
	var d struct {
		audit.Container
		Argv     []string          `json:"argv"`
		EnvNames []string          `json:"envNames"`
		Cwd      string            `json:"cwd"`
		UID      uint32            `json:"uid"`
		GID      uint32            `json:"gid"`
		Limits   profiles.Limits   `json:"limits"`
		Runtime  string            `json:"runtime"`
		Policy   *profiles.Profile `json:"policy"`
	}
	if !decode(rec, &d) {
		return
	}
	r := rd.r
	r.Container, r.Argv, r.EnvNames, r.Cwd, r.UID, r.GID = d.Container, d.Argv, d.EnvNames, d.Cwd, d.UID, d.GID
	r.Limits, r.Runtime = d.Limits, d.Runtime
	if d.Policy == nil {
		return
	}
	for _, row := range profileview.Show(d.Policy).Rows {
		if len(row) == 2 {
			r.Matrix = append(r.Matrix, [2]string{row[0], row[1]})
		}
	}
}

func (rd *reader) exec(rec *audit.Record) {
	var d struct {
		ID       string   `json:"id"`
		PID      int      `json:"pid"`
		Argv     []string `json:"argv"`
		Cwd      string   `json:"cwd"`
		UID      uint32   `json:"uid"`
		Terminal bool     `json:"terminal"`
	}
	if !decode(rec, &d) || !rd.room("execs", len(rd.r.Execs), maxExecs) {
		return
	}
	rd.open[d.PID] = len(rd.r.Execs)
	rd.r.Execs = append(rd.r.Execs, Exec{
		ID: d.ID, PID: d.PID, Argv: d.Argv, Cwd: d.Cwd, UID: d.UID, Terminal: d.Terminal, Start: rec.Time,
	})
}

func (rd *reader) execExit(rec *audit.Record) {
	var d struct {
		PID      int   `json:"pid"`
		Status   int   `json:"status"`
		TimedOut bool  `json:"timedOut"`
		Millis   int64 `json:"millis"`
	}
	if !decode(rec, &d) {
		return
	}
	i, ok := rd.open[d.PID]
	if !ok {
		return
	}
	delete(rd.open, d.PID)
	e := &rd.r.Execs[i]
	e.End, e.Status, e.TimedOut = rec.Time, &d.Status, d.TimedOut
	if d.TimedOut {
		rd.addEvent(Event{rec.Time, "time-out", fmt.Sprintf("%s ran longer than it may, and was ended with its descendants", e.ID), true})
	}
}

func (rd *reader) exit(rec *audit.Record) {
	var d struct {
		Status int            `json:"status"`
		End    *container.End `json:"end"`
		Peaks  Peaks          `json:"peaks"`
		Usage  *audit.Usage   `json:"usage"`
	}
	if !decode(rec, &d) {
		return
	}
	if d.Usage != nil && usable(d.Usage) {
		rd.r.Usage = d.Usage
	}
	rd.r.Status, rd.r.End, rd.r.Peaks, rd.r.Running = &d.Status, d.End, d.Peaks, false
}

// denial takes in what the profile cut from the engine's spec, and what was refused to the task.
func (rd *reader) denial(rec *audit.Record) {
	var d struct {
		Rule  string `json:"rule"`
		Text  string `json:"text"`
		Kind  string `json:"kind"`
		What  string `json:"what"`
		Why   string `json:"why"`
		Allow string `json:"allow"`
		Count int    `json:"count"`
	}
	if !decode(rec, &d) || !rd.room("denials", len(rd.r.Denials), maxDenials) {
		return
	}
	if d.Text == "" {
		d.Text = strings.TrimSpace(d.Kind + " " + d.What)
		if d.Why != "" {
			d.Text += ": " + d.Why
		}
		if d.Count > 1 {
			d.Text += fmt.Sprintf(" (%d times)", d.Count)
		}
	}
	rd.r.Denials = append(rd.r.Denials, Denial{rec.Time, d.Rule, d.Text})
}

func (rd *reader) addEvent(e Event) {
	if rd.room("events", len(rd.r.Events), maxEvents) {
		rd.r.Events = append(rd.r.Events, e)
	}
}

func (rd *reader) event(rec *audit.Record) {
	switch rec.Type {
	case audit.TypeRefused:
		var d struct{ What, Rule, Allow, Caller string }
		if decode(rec, &d) {
			rd.addEvent(Event{Time: rec.Time, Kind: "refused", Text: fmt.Sprintf("not created: %s: %s; allowed by %s (asked by %q)", d.What, d.Rule, d.Allow, d.Caller)})
		}
	case audit.TypeLimit:
		var d container.End
		if decode(rec, &d) {
			rd.addEvent(Event{rec.Time, string(d.Reason), d.Message, true})
		}
	case audit.TypeGap:
		var d struct {
			Dropped uint64 `json:"dropped"`
			Error   string `json:"error"`
		}
		if decode(rec, &d) {
			rd.addEvent(Event{Time: rec.Time, Kind: "gap", Text: fmt.Sprintf("%d records are missing here: %s", d.Dropped, d.Error)})
		}
	default:
		rd.addEvent(Event{Time: rec.Time, Kind: rec.Type, Text: "a torn record was cut off after a crash"})
	}
}

// egress gathers the gateway's decisions by destination.
func (rd *reader) egress(rec *audit.Record) {
	var d struct {
		Event    string `json:"event"`
		Decision string `json:"decision"`
		Name     string `json:"name"`
		Address  string `json:"address"`
		Port     uint16 `json:"port"`
		Rule     string `json:"rule"`
		Reason   string `json:"reason"`
		In       int64  `json:"bytesIn"`
		Out      int64  `json:"bytesOut"`
		Count    int64  `json:"count"`
		Omitted  int    `json:"omitted"`
	}
	if !decode(rec, &d) {
		return
	}
	rd.r.Omitted["egress decisions"] += d.Omitted
	if d.Omitted == 0 {
		delete(rd.r.Omitted, "egress decisions")
	}
	key := hostKey{d.Name, d.Port}
	if key.name == "" {
		key.name = d.Address
	}
	if key.name == "" || d.Decision == "" && d.Event != "close" {
		return
	}
	i, ok := rd.hosts[key]
	if !ok {
		if !rd.room("hosts", len(rd.r.Hosts), maxHosts) {
			return
		}
		i = len(rd.r.Hosts)
		rd.hosts[key] = i
		rd.r.Hosts = append(rd.r.Hosts, Host{Name: key.name, Port: key.port})
	}
	h := &rd.r.Hosts[i]
	h.BytesIn, h.BytesOut = h.BytesIn+d.In, h.BytesOut+d.Out
	switch n := max(d.Count, 1); d.Decision {
	case "allow":
		h.Allowed, h.Rule = h.Allowed+n, d.Rule
	case "refuse":
		h.Refused, h.Rule, h.Reason = h.Refused+n, d.Rule, d.Reason
	}
}
