package health

import (
	"maps"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/gpu"
)

// DefaultQuiet is how long a device that recovers by being quiet must have been:
// time enough for a job that was started again to meet the same error.
const DefaultQuiet = 5 * time.Minute

// Rule is what an XID does to a GPU's health.
type Rule struct {
	Action   gpu.Action
	Recovery gpu.Recovery // where Action is ActionUnhealthy
}

// Policy says what each XID does to a GPU's health. It is a value that is never
// changed; the zero Policy is the default one, that of the table in package gpu.
type Policy struct {
	every   gpu.Action
	unknown Rule
	xids    map[uint64]Rule
	quiet   time.Duration
}

// DefaultPolicy is that of the table in package gpu; an XID that is not in it
// makes the whole GPU unhealthy until a reset.
func DefaultPolicy() Policy { return Policy{} }

// Changes is what somebody wants to be otherwise than a Policy says. What is
// zero stays as it is.
type Changes struct {
	Every   gpu.Action      // for all XIDs, known or not, that Unknown and XIDs do not name
	Unknown Rule            // for XIDs that are not in the table
	XIDs    map[uint64]Rule // for single ones; a zero Action or Recovery stays as it is
	Quiet   time.Duration   // how long to be quiet for
}

// With returns the policy with the changes made. They go before those that were
// made earlier.
func (p Policy) With(c Changes) Policy {
	if c.Every != "" {
		// What was said of single ones before is over, but for how they recover.
		p.every, p.unknown.Action = c.Every, ""
		p.xids = maps.Clone(p.xids)
		for xid, rule := range p.xids {
			p.xids[xid] = Rule{Recovery: rule.Recovery}
		}
	}
	p.unknown = p.unknown.with(c.Unknown)
	if len(c.XIDs) > 0 {
		merged := map[uint64]Rule{}
		maps.Copy(merged, p.xids)
		for xid, rule := range c.XIDs {
			merged[xid] = merged[xid].with(rule)
		}
		p.xids = merged
	}
	if c.Quiet > 0 {
		p.quiet = c.Quiet
	}
	return p
}

// with returns the rule with what o says in place of its own.
func (r Rule) with(o Rule) Rule {
	if o.Action != "" {
		r.Action = o.Action
	}
	if o.Recovery != "" {
		r.Recovery = o.Recovery
	}
	return r
}

// Rule is what is done about an XID.
func (p Policy) Rule(xid uint64) Rule {
	rule := Rule{gpu.ActionUnhealthy, gpu.RecoveryReset}
	info, known := gpu.XID(xid)
	if known {
		rule = Rule{info.Action, info.Recovery}
	}
	rule = rule.with(Rule{Action: p.every})
	if !known {
		rule = rule.with(p.unknown)
	}
	return rule.with(p.xids[xid])
}

// Quiet is how long a device must have been quiet to recover by that.
func (p Policy) Quiet() time.Duration {
	if p.quiet > 0 {
		return p.quiet
	}
	return DefaultQuiet
}

// Configured is what a configuration file, which has been checked, wants to be
// otherwise.
func Configured(c config.Health) Changes {
	var out Changes
	for _, rule := range c.XIDs {
		if out.XIDs == nil {
			out.XIDs = map[uint64]Rule{}
		}
		out.XIDs[rule.XID] = Rule{gpu.Action(rule.Action), gpu.Recovery(rule.Recovery)}
	}
	if u := c.UnknownXIDs; u != nil {
		out.Unknown = Rule{gpu.Action(u.Action), gpu.Recovery(u.Recovery)}
	}
	if q := c.QuietPeriod; q != nil {
		out.Quiet = q.Duration
	}
	return out
}
