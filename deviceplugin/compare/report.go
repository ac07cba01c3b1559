package compare

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Report is one comparison for people and programs.
type Report struct {
	Time        time.Time    `json:"time"`
	Resources   []Resource   `json:"resources"`
	Differences []Difference `json:"differences"`
	Counts      map[Kind]int `json:"counts"`
}

// Resource sums up a resource.
type Resource struct {
	Name    string `json:"name"`
	Ours    int    `json:"ours"`    // devices
	Healthy int    `json:"healthy"` // of ours
	Theirs  int    `json:"theirs"`  // healthy ones: the kubelet lists no others
	Given   int    `json:"given"`   // devices allocated to containers
}

// NewReport returns the report of a comparison.
func NewReport(o Ours, t Theirs, found []Difference, now time.Time) Report {
	r := Report{Time: now.UTC(), Resources: []Resource{}, Differences: []Difference{}, Counts: Counts(found)}
	r.Differences = append(r.Differences, found...)
	theirs := map[string]int{}
	for at, l := range listTheirs(o, t) {
		theirs[at.resource] += len(l.ids)
	}
	add := func(resource Resource) {
		for _, h := range t.Allocations {
			if h.Resource == resource.Name {
				resource.Given += len(h.IDs)
			}
		}
		resource.Theirs = theirs[resource.Name]
		delete(theirs, resource.Name)
		r.Resources = append(r.Resources, resource)
	}
	for _, p := range o.Plan.Resources {
		resource := Resource{Name: p.Name, Ours: len(p.Devices)}
		for _, d := range p.Devices {
			if d.Healthy() {
				resource.Healthy++
			}
		}
		add(resource)
	}
	for _, name := range sortedKeys(theirs) {
		add(Resource{Name: name})
	}
	return r
}

// Counts returns the number of differences of each kind.
func Counts(found []Difference) map[Kind]int {
	counts := map[Kind]int{}
	for _, kind := range Kinds() {
		counts[kind] = 0
	}
	for _, d := range found {
		counts[d.Kind]++
	}
	return counts
}

// WriteJSON prints the report for programs.
func (r Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// WriteTable prints the report for people.
func (r Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RESOURCE\tOURS\tHEALTHY\tTHE KUBELET HAS\tGIVEN AWAY")
	for _, resource := range r.Resources {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%d\n", resource.Name, resource.Ours, resource.Healthy, resource.Theirs, resource.Given)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(r.Differences) == 0 {
		_, err := fmt.Fprintln(w, "\nno differences")
		return err
	}
	fmt.Fprintln(t, "\nDIFFERENCE\tRESOURCE\tDEVICE OR POD\tOURS\tTHEIRS\tWHY")
	for _, d := range r.Differences {
		why := d.Message
		if d.Reason != "" {
			why = string(d.Reason) + ": " + why
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", d.Kind, d.Resource, cmp.Or(string(d.Device), d.Pod, "-"), d.Ours, d.Theirs, why)
	}
	return t.Flush()
}
