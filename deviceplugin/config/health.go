package config

import (
	"slices"
	"time"
)

// Health overrides the table in docs/reasons.md: what makes a device unhealthy, and
// healthy again.
type Health struct {
	XIDs         []XIDRule  `json:"xids,omitempty" doc:"What to do on an XID, where the table in docs/reasons.md says otherwise."`
	UnknownXIDs  *XIDPolicy `json:"unknownXIDs,omitempty" doc:"What to do on an XID that the table does not know. Default: ask, recovery reset."`
	PendingRemap string     `json:"pendingRemap,omitempty" enum:"allocatable unhealthy" doc:"Whether a GPU is allocated while rows or pages of faulty memory wait to be replaced by a reset. Default: allocatable where NVIDIA says that new work may start (GA100, GH100, GB10x), else unhealthy."`
	QuietPeriod  *Duration  `json:"quietPeriod,omitempty" doc:"How long a device whose recovery is quiet must have been without another such error, and then pass a probe. Default: 5m."`
}

// XIDPolicy is the reaction to an XID. Empty fields follow the table.
type XIDPolicy struct {
	Action   string `json:"action,omitempty" enum:"ignore unhealthy ask" doc:"Whether the device becomes unhealthy. ask: if the driver asks for a recovery, or cannot say (before R570)."`
	Recovery string `json:"recovery,omitempty" enum:"reset quiet never" doc:"What makes it healthy again. reset: a reset that was seen; quiet: the quiet period and a probe that passes; never: only a new driver or a reboot."`
}

// XIDRule is the reaction to one XID.
type XIDRule struct {
	XID      uint64 `json:"xid" required:"true" min:"1" doc:"Number of the XID."`
	Action   string `json:"action,omitempty" enum:"ignore unhealthy ask" doc:"Whether the device becomes unhealthy; ask: as the driver says. Default: as the table says."`
	Recovery string `json:"recovery,omitempty" enum:"reset quiet never" doc:"What makes it healthy again. Default: as the table says."`
}

// Bounds of the quiet period: a probe takes a while, and a node seldom stays up
// for longer than a month.
const (
	minQuiet = time.Second
	maxQuiet = 30 * 24 * time.Hour
)

// checkHealth checks the section health.
func (p *problems) checkHealth(h Health) {
	for i, rule := range h.XIDs {
		path := itemPath("health.xids", i)
		if rule.XID == 0 {
			p.add(path+".xid", "no XID is given; write its number")
		}
		if j := slices.IndexFunc(h.XIDs[:i], func(r XIDRule) bool { return r.XID == rule.XID }); j >= 0 {
			p.add(path+".xid", "XID %d has a rule in xids[%d] already; remove one", rule.XID, j)
		}
		p.checkPolicy(path, XIDPolicy{rule.Action, rule.Recovery})
	}
	if h.UnknownXIDs != nil {
		p.checkPolicy("health.unknownXIDs", *h.UnknownXIDs)
	}
	if q := h.QuietPeriod; q != nil {
		switch {
		case q.invalid != "":
			p.add("health.quietPeriod", "%q is not a duration; write a number with its unit, as 5m", q.invalid)
		case q.Duration < minQuiet || q.Duration > maxQuiet:
			p.add("health.quietPeriod", "%v is not between %v and %v; write a number with its unit, as 5m", q.Duration, minQuiet, maxQuiet)
		}
	}
}

// checkPolicy checks the reaction to an XID.
func (p *problems) checkPolicy(path string, x XIDPolicy) {
	switch {
	case x.Action == "" && x.Recovery == "":
		p.add(path, "empty; write an action, a recovery, or both, or remove it")
	case x.Action == "ignore" && x.Recovery != "":
		p.add(path+".recovery", "there is nothing to recover from what is ignored; remove it")
	}
}
