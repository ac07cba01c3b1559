package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/operator/kubectl/migrate"
)

// migrationPlan writes a plan for people.
type migrationPlan migrate.Plan

// names returns the GPU nodes.
func (m migrationPlan) names() (all []string) {
	for _, n := range m.Nodes {
		all = append(all, "node/"+n.Name)
	}
	return all
}

// sideNames name the sides in tables.
var sideNames = map[migrate.Side]string{migrate.NVIDIA: "NVIDIA's", migrate.GPUReady: "gpuready", migrate.Between: "moving", migrate.Nobody: "nobody"}

var sideColors = map[migrate.Side]string{migrate.GPUReady: green, migrate.Between: yellow, migrate.Nobody: dim}

func (m migrationPlan) text(w io.Writer, look style) error {
	p := &pen{style: look}
	m.drawOperators(p)
	m.drawPolicies(p)
	m.drawDaemonSets(p)
	m.drawNodes(p)
	for _, note := range m.Notes {
		p.line(yellow, 0, "! "+note)
	}
	for _, why := range m.Refused {
		p.WriteString("\n")
		p.line(red, 0, "✗ "+why)
	}
	for i, command := range m.Next {
		if i == 0 {
			p.WriteString("\n")
			p.line("", 0, heading(command))
		}
		p.WriteString("  " + command + "\n") // never wrapped, so that it can be copied
	}
	_, err := io.WriteString(w, p.String())
	return err
}

// heading introduces the next commands, of which command is the first.
func heading(command string) string {
	if command != migrate.Installation() {
		return "next:"
	}
	return "next, in a clone of gpuready's repository (the chart of a published release is " + migrate.PublishedChart() + "):"
}

func (m migrationPlan) drawOperators(p *pen) {
	var rows []row
	add := func(name string, all []migrate.Operator) {
		if len(all) == 0 {
			rows = append(rows, row{Cells: []cell{{Text: name}, {Text: "-"}, {Text: "-"}, {Text: "not installed", Color: yellow}}})
		}
		for _, o := range all {
			state := cell{Text: "not ready", Color: red}
			if !o.Runs {
				state = cell{Text: "scaled to zero", Color: yellow}
			} else if o.Ready {
				state = cell{Text: "ready", Color: green}
			}
			version := o.Version
			if version == "" {
				version = "-"
			}
			rows = append(rows, row{Cells: []cell{{Text: name}, {Text: o.String()}, {Text: version}, state}})
		}
	}
	add("NVIDIA's", m.NVIDIA)
	add("gpuready", m.GPUReady)
	p.table([]string{"OPERATOR", "DEPLOYMENT", "VERSION", "STATE"}, rows)
	switch m.Definition {
	case "nvidia":
		p.line("", 0, "The definition of ClusterPolicies is NVIDIA's.")
	case "gpuready":
		p.line("", 0, "The definition of ClusterPolicies is gpuready's.")
	}
}

func (m migrationPlan) drawPolicies(p *pen) {
	for _, policy := range m.Policies {
		title := "ClusterPolicy " + policy.Name
		switch {
		case len(policy.Refused) > 0:
			title += ": refused"
		case !policy.InForce:
			title += ": ignored, another one is older"
		case len(policy.Unserved)+len(policy.Pruned) == 0:
			title += ": everything is followed"
		default:
			title += ": followed, but for these fields"
		}
		p.WriteString("\n")
		p.line(bold, 0, title)
		for _, line := range policy.Refused {
			p.line(red, 2, line)
		}
		for _, line := range policy.Unserved {
			p.line("", 2, line)
		}
		for _, path := range policy.Pruned {
			p.line("", 2, path+": gpuready's definition has no such field. NVIDIA's keeps it; when gpuready's replaces that, the API server drops it")
		}
		if policy.InForce && len(policy.Unserved) > 0 && slices.ContainsFunc(m.NVIDIA, func(o migrate.Operator) bool { return o.Runs }) {
			p.line(yellow, 2, "! NVIDIA's operator reads the same fields: change them only when it has gone")
		}
	}
}

func (m migrationPlan) drawDaemonSets(p *pen) {
	var rows []row
	for _, d := range m.DaemonSets {
		ready := cell{Text: fmt.Sprintf("%d/%d", d.Ready, d.Desired)}
		if d.Ready < d.Desired {
			ready.Color = yellow
		}
		rows = append(rows, row{Cells: []cell{{Text: sideNames[d.Side]}, {Text: d.Namespace + "/" + d.Name}, ready}})
	}
	if len(rows) > 0 {
		p.WriteString("\n")
	}
	p.table([]string{"OPERANDS", "DAEMONSET", "READY"}, rows)
}

func (m migrationPlan) drawNodes(p *pen) {
	var rows []row
	for _, n := range m.Nodes {
		state := cell{Text: "ready", Color: green}
		if n.Waits != "" {
			state = cell{Text: "not ready", Color: yellow}
		}
		if n.ServedBy == migrate.Nobody {
			state = cell{Text: "-"}
		}
		var below []string
		if n.Waits != "" {
			below = append(below, n.Waits)
		}
		for _, why := range n.Refused {
			below = append(below, "✗ "+why)
		}
		r := row{Cells: []cell{{Text: n.Name}, {Text: sideNames[n.ServedBy], Color: sideColors[n.ServedBy]}, state, {Text: podsCell(n.Pods)}, {Text: n.Next}}, Below: strings.Join(below, "; ")}
		if len(n.Refused) > 0 {
			r.Color = red
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		p.WriteString("\n")
		p.line(yellow, 0, "No node has a label that says that it has an NVIDIA GPU.")
		return
	}
	p.WriteString("\n")
	p.table([]string{"NODE", "SERVED BY", "STATE", "PODS WITH GPUS", "NEXT"}, rows)
}

// podsCell names up to two pods of a node.
func podsCell(pods []string) string {
	switch n := len(pods); {
	case n == 0:
		return "-"
	case n > 2:
		return strings.Join(slices.Clone(pods[:2]), ", ") + fmt.Sprintf(" and %d more", n-2)
	}
	return strings.Join(pods, ", ")
}

// text writes what becomes of the nodes, for people.
func (all nodeMoves) text(w io.Writer, look style) error {
	p := &pen{style: look}
	if len(all) == 0 {
		p.line("", 0, "No node is to be moved.")
	}
	for _, move := range all {
		switch {
		case move.Done:
			p.line(green, 0, move.Node+": done")
		case len(move.Refused) > 0:
			p.line(red, 0, move.Node+": refused")
			for _, why := range move.Refused {
				p.line("", 2, why)
			}
		default:
			p.line("", 0, move.Node+":")
			for _, step := range move.Steps {
				p.WriteString("  " + step.Command(move.Node) + "\n")
				p.line(dim, 2, "then wait until "+step.Then)
			}
		}
	}
	_, err := io.WriteString(w, p.String())
	return err
}
