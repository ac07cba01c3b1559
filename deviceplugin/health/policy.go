package health

import (
	"cmp"
	"maps"
	"time"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/gpu"
)

// DefaultQuietPeriod is the default quiet period after which a device may recover. It is long
// enough for a restarted job to meet the same error.
const DefaultQuietPeriod = 5 * time.Minute

// Rule is the effect of an XID on a GPU's health.
type Rule struct {
	Action   gpu.Action
	Recovery gpu.Recovery // where Action is ActionUnhealthy
}

// Policy maps each XID to its effect on a GPU's health. It is a value that is never
// changed. The zero Policy is the default one, the table in package gpu.
type Policy struct {
	every       gpu.Action      // for all XIDs without an action of their own; "": see the table
	unknown     Rule            // for XIDs that are not in the table; zero fields: the default
	xids        map[uint64]Rule // for single XIDs; zero fields change nothing
	quietPeriod time.Duration   // 0: the default
	remap       string          // Health.PendingRemap of the configuration; "": by the kind of GPU
}

// DefaultPolicy returns the policy of the table in package gpu. Of an XID that is not in it, the driver decides;
// where the driver cannot say, the whole GPU is unhealthy until a reset.
func DefaultPolicy() Policy { return Policy{} }

// Changes overrides parts of a Policy. Zero fields change nothing.
type Changes struct {
	Every       gpu.Action      // for all XIDs, known or not, that Unknown and XIDs do not name
	Unknown     Rule            // for XIDs that are not in the table
	XIDs        map[uint64]Rule // for single XIDs; a zero Action or Recovery changes nothing
	QuietPeriod time.Duration   // the quiet period
	Remap       string          // Health.PendingRemap of the configuration
}

// With returns the policy with the changes applied. They override earlier ones.
func (p Policy) With(c Changes) Policy {
	if c.Every != "" {
		// Earlier actions for single XIDs are dropped; their recovery stays.
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
	if c.QuietPeriod > 0 {
		p.quietPeriod = c.QuietPeriod
	}
	p.remap = cmp.Or(c.Remap, p.remap)
	return p
}

// with returns the rule with the non-zero fields of o in place of its own.
func (r Rule) with(o Rule) Rule {
	if o.Action != "" {
		r.Action = o.Action
	}
	if o.Recovery != "" {
		r.Recovery = o.Recovery
	}
	return r
}

// Rule returns the rule for an XID.
func (p Policy) Rule(xid uint64) Rule {
	rule := Rule{gpu.ActionAsk, gpu.RecoveryReset}
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

// Judge returns the GPU with the fault of memory that waits to be replaced, or without it, where the configuration
// chooses. One that is released, so that it can be reset, is not watched for that reason alone.
func (p Policy) Judge(d gpu.Device) gpu.Device {
	asked := d.Recovery != "" && d.Recovery != gpu.RecoverNothing
	switch {
	case d.Remap != gpu.RemapPending:
	case p.remap == "unhealthy" && (d.Fault.Reason == "" || d.Fault.Reason == gpu.ReasonUnwatched):
		d.Fault = gpu.Fault{Reason: gpu.ReasonResetNeeded, Message: "faulty memory waits to be replaced: end the programs on the GPU, then reset it"}
	case p.remap == "allocatable" && d.Fault.Reason == gpu.ReasonResetNeeded && !asked:
		d.Fault = gpu.Fault{}
	}
	return d
}

// IsDefault reports whether an XID has the action of the table, and nobody has chosen another.
func (p Policy) IsDefault(xid uint64) bool { return p.every == "" && p.xids[xid].Action == "" }

// QuietPeriod returns the quiet period after which a device may recover.
func (p Policy) QuietPeriod() time.Duration {
	if p.quietPeriod > 0 {
		return p.quietPeriod
	}
	return DefaultQuietPeriod
}

// ChangesFromConfig returns the changes that a validated configuration file asks for.
func ChangesFromConfig(c config.Health) Changes {
	out := Changes{Remap: c.PendingRemap}
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
		out.QuietPeriod = q.Duration
	}
	return out
}
