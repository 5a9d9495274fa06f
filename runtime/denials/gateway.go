package denials

import (
	"encoding/json"
	"net"
	"strconv"
	"time"
)

// gatewayEvent is what counts here of a line of the gateway's log; its own type would bring the whole gateway along.
type gatewayEvent struct {
	Time     time.Time `json:"time"`
	Event    string    `json:"event"`
	Decision string    `json:"decision"`
	Name     string    `json:"name"`
	Address  string    `json:"address"`
	Port     uint16    `json:"port"`
	Rule     string    `json:"rule"`
	Code     string    `json:"code"`
	Reason   string    `json:"reason"`
}

// FromGateway reads a line of the gateway's log; false if it is no refusal.
func FromGateway(line []byte) (Denial, bool) {
	var e gatewayEvent
	if json.Unmarshal(line, &e) != nil || e.Decision != "refuse" {
		return Denial{}, false
	}
	to := e.Name
	if to == "" {
		to = e.Address
	}
	d := Denial{Time: e.Time, Kind: Network, What: to, Answer: e.Code, Rule: e.Rule, Why: e.Reason}
	if e.Port != 0 {
		d.What = net.JoinHostPort(to, strconv.Itoa(int(e.Port)))
	}
	if d.Rule == "" {
		d.Rule = "network.allow"
	}
	if e.Code == "no-rule" && e.Name != "" {
		rule := d.What
		if e.Port == 0 {
			rule = e.Name + ":443"
		}
		d.Allow = "network: {allow: [" + strconv.Quote(rule) + "]}"
	}
	return d, true
}
