package distro

import (
	"fmt"
	"strings"
)

// renderSection renders the section of docs/toolkit.md about distributions: the changes on each
// and how to undo them.
func renderSection() string {
	var b strings.Builder
	b.WriteString(`
| distribution | configuration | written | restarted by | folder of programs |
|---|---|---|---|---|
`)
	for _, p := range profiles() {
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s | %s | %s |\n", p.Title, slug(p.Title), code(p.Config), written(p), restartedBy(p), code(programsIn(p)))
	}
	for _, p := range profiles() {
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n", p.Title, p.Notes)
		row := func(name, value string) {
			if value != "" {
				fmt.Fprintf(&b, "- %s: %s\n", name, value)
			}
		}
		row("detected by", describeDetection(p.Detect))
		row("CRI socket", codes(p.Sockets))
		row("socket of Docker's API", code(p.API))
		row("other writer of the configuration", p.Owner)
		row("drop-in", dropIns(p))
		row("generated from it, never written", codes(p.Generated))
		row("read-only", codes(p.ReadOnly))
		row("manual step", p.Restart.Message)
		row("`restore`", p.Undo)
		row("sources", links(p.Sources))
	}
	b.WriteString("\n")
	return b.String()
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

func codes(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = code(s)
	}
	return strings.Join(quoted, ", ")
}

func links(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = "<" + s + ">"
	}
	return strings.Join(quoted, ", ")
}

func programsIn(p Profile) string {
	if p.InstallDir == "" {
		return "/usr/local/nvidia/gpuready"
	}
	return p.InstallDir
}

func written(p Profile) string {
	switch {
	case p.Restart.Method == Manual:
		return "nothing"
	case p.DropIn == "":
		return "that file, in place"
	case p.Always:
		return code(p.DropIn)
	case p.Owner != "":
		return code(p.DropIn) + ", if the configuration imports it"
	}
	return code(p.DropIn) + " if the configuration imports it, else that file, in place"
}

func restartedBy(p Profile) string {
	switch {
	case p.Restart.Automatic:
		return p.Title + " itself"
	case p.Restart.Method == Manual:
		return "nobody"
	case p.Restart.Method == Reload:
		return "SIGHUP to " + code(p.Restart.Units[0])
	}
	return "systemd: " + codes(p.Restart.Units)
}

func dropIns(p Profile) string {
	text := code(p.DropIn)
	if p.Containerd1 != "" {
		text += ", with containerd 1 " + code(p.Containerd1)
	}
	return text
}

func describeDetection(d Detection) string {
	var all []string
	for key, value := range d.OSRelease {
		if value == "*" {
			all = append(all, code(key)+" in /etc/os-release")
			continue
		}
		all = append(all, code(key+"="+value)+" in /etc/os-release")
	}
	if d.Socket != "" {
		all = append(all, "the socket "+code(d.Socket))
	}
	if len(d.Paths) > 0 {
		all = append(all, "the directory "+codes(d.Paths))
	}
	if d.Config != "" {
		all = append(all, "a unit that names "+code(d.Config))
	}
	return strings.Join(all, ", ")
}

// slug returns a heading's link anchor, as GitHub makes it.
func slug(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			return r
		}
		return -1
	}, strings.ToLower(title))
}
