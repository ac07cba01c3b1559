package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/gpuready/gpuready/internal/nodestate"
)

// check is one condition for containers to get their GPUs.
type check struct {
	Name    string `json:"name"`
	OK      bool   `json:"ok"`
	Message string `json:"message"` // the result, or the problem with a remedy
}

// hostStatus is the status of a host.
type hostStatus struct {
	Toolkit *nodestate.State `json:"toolkit,omitempty"` // published last in this boot, nil if none was
	Runtime *runtimeStatus   `json:"runtime,omitempty"` // nil if none is found
	Files   []fileStatus     `json:"files"`
	// Unfinished is a change of the runtime's configuration that is under way.
	Unfinished string `json:"unfinished,omitempty"`
}

// runtimeStatus is the container runtime's own description, and its profile on this host.
type runtimeStatus struct {
	nodestate.Runtime
	Default string `json:"defaultHandler,omitempty"`
	Profile string `json:"profile,omitempty"`
	Why     string `json:"why,omitempty"` // the reason for that profile
	Config  string `json:"config,omitempty"`
	DropIn  string `json:"dropIn,omitempty"`
	Writer  string `json:"writer,omitempty"` // the program that writes Config, if any
}

// fileStatus is a path of the host that the toolkit has made or changed.
type fileStatus struct {
	Path  string `json:"path"`
	What  string `json:"what"`  // "file", "link", "device node"
	Owner string `json:"owner"` // "gpuready", or whether others have changed it since
	// Original reports whether restore restores an earlier content.
	Original bool `json:"original"`
}

// writeJSON writes anything as JSON for programs.
func writeJSON(w io.Writer, what any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(what)
}

// writeChecks writes checks for people.
func writeChecks(w io.Writer, checks []check) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CHECK\tOK\tWHAT")
	for _, c := range checks {
		fmt.Fprintf(t, "%s\t%s\t%s\n", c.Name, yesNo(c.OK), c.Message)
	}
	return t.Flush()
}

// writeStatus writes a status for people.
func writeStatus(w io.Writer, s hostStatus) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(t, "%s\t%s\n", name, value)
		}
	}
	if s.Toolkit == nil {
		line("toolkit", "has left no state in this boot")
	} else {
		line("toolkit", strings.TrimSpace(fmt.Sprintf("%s %s", s.Toolkit.Phase, s.Toolkit.Reason)))
		line("", s.Toolkit.Message)
		if d := s.Toolkit.Driver; d != nil {
			line("driver", d.Version+" below "+d.Root)
		}
		if i := s.Toolkit.Toolkit; i != nil {
			for _, spec := range i.Specs {
				line("CDI", fmt.Sprintf("%s: %d devices in %s", spec.Kind, len(spec.Devices), spec.Path))
			}
			if i.Injection != nil {
				line("agents", describeInjection(*i.Injection))
			}
		}
		for _, u := range s.Toolkit.Unserved {
			line("no effect", u.Name+": "+u.Message)
		}
	}
	if r := s.Runtime; r == nil {
		line("runtime", "none is found")
	} else {
		line("runtime", strings.TrimSpace(r.Name+" "+r.Version)+" at "+r.Socket)
		line("", r.Message)
		line("CDI names", describeCDI(r.Runtime))
		line("handlers", strings.Join(r.Handlers, ", "))
		line("default", r.Default)
		line("arranged as", strings.TrimSuffix(r.Profile+", "+r.Why, ", "))
		line("configuration", r.Config)
		line("", r.Writer)
		line("drop-in", r.DropIn)
	}
	line("unfinished", s.Unfinished)
	if err := t.Flush(); err != nil {
		return err
	}
	if len(s.Files) == 0 {
		_, err := fmt.Fprintln(w, "\nnothing is installed")
		return err
	}
	fmt.Fprintln(t, "\nPATH\tWHAT\tOWNER\tORIGINAL KEPT")
	for _, f := range s.Files {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", f.Path, f.What, f.Owner, yesNo(f.Original))
	}
	return t.Flush()
}

func yesNo(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

func describeInjection(i nodestate.Injection) string {
	if i.Working {
		return "are given the GPUs by NRI"
	}
	return "are not given the GPUs: " + i.Message
}

func describeCDI(r nodestate.Runtime) string {
	switch {
	case r.CDI == nil:
		return "it does not say"
	case !*r.CDI:
		return "off"
	}
	return strings.TrimSuffix("on, from "+strings.Join(r.CDIDirs, ", "), ", from ")
}
