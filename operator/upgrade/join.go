package upgrade

import "maps"

// Join returns one plan of several, each of which is about other nodes.
func Join(plans ...*Plan) *Plan {
	all := &Plan{Assign: map[string]string{}, Waiting: map[string]string{}}
	var idle []string
	for _, p := range plans {
		all.Patches = append(all.Patches, p.Patches...)
		maps.Copy(all.Assign, p.Assign)
		all.Evict, all.Delete = append(all.Evict, p.Evict...), append(all.Delete, p.Delete...)
		begun := len(p.Watch) - p.idle
		all.Watch, idle = append(all.Watch, p.Watch[:begun]...), append(idle, p.Watch[begun:]...)
		if next := p.NextPlan; !next.IsZero() && (all.NextPlan.IsZero() || next.Before(all.NextPlan)) {
			all.NextPlan = next
		}
		maps.Copy(all.Waiting, p.Waiting)
		all.Failed, all.Unwritten, all.Blocked = append(all.Failed, p.Failed...), append(all.Unwritten, p.Unwritten...), append(all.Blocked, p.Blocked...)
		all.Counts = all.Counts.plus(p.Counts)
	}
	all.Watch, all.idle = append(all.Watch, idle...), len(idle)
	all.sort()
	return all
}

func (c Counts) plus(d Counts) Counts {
	return Counts{
		Total: c.Total + d.Total, Done: c.Done + d.Done, InProgress: c.InProgress + d.InProgress,
		Pending: c.Pending + d.Pending, Skipped: c.Skipped + d.Skipped, Failed: c.Failed + d.Failed,
	}
}
