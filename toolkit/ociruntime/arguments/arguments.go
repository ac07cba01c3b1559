// Package arguments reads the command line of an OCI runtime, as far as has to be
// known to see which container is created. The flags are those of runc, crun and
// youki together; each takes "--flag value" and "--flag=value".
package arguments

import (
	"path/filepath"
	"slices"
	"strings"
)

// Call is what a runtime is asked for.
type Call struct {
	Command string // "create"; "" where there is none
	// Config is the configuration of the container that is created; "" for commands
	// that create none. Relative to the working directory, as are the others.
	Config    string
	Log       string // the file for errors, "" for none
	LogFormat string // "json", "text" or ""
}

// Creates says whether a container is made of its configuration now.
func (c Call) Creates() bool { return c.Config != "" }

// Flags that take a value: runc's main.go, create.go and run.go; crun's src/crun.c,
// src/create.c and src/run.c; youki's crates/liboci-cli.
var (
	global = []string{"root", "r", "log", "l", "log-format", "log-level", "rootless", "cgroup-manager", "criu"}
	create = []string{"bundle", "b", "config", "f", "console-socket", "c", "pid-file", "p", "pidfd-socket", "preserve-fds"}

	// switches are the flags known to take none.
	switches = []string{"debug", "systemd-cgroup", "s", "version", "v", "V", "help", "h"}
)

// Parse reads the arguments after the program's name.
func Parse(args []string) Call {
	var call Call
	p := parser{rest: args, takes: global}
	p.each(func(name, value string) bool {
		switch name {
		case "log", "l":
			call.Log = strings.TrimPrefix(value, "file:") // as crun has it
		case "log-format":
			call.LogFormat = value
		case "":
			call.Command = value
			return false
		}
		return true
	})
	if strings.HasPrefix(call.Log, "journald:") || strings.HasPrefix(call.Log, "syslog:") {
		call.Log = ""
	}
	if call.Command == "create" || call.Command == "run" {
		call.Config = config(p.rest)
	}
	return call
}

// config returns the path of the configuration that the arguments of create or
// run name; "" where they ask for help.
func config(args []string) string {
	bundle, name := ".", "config.json"
	help := false
	p := parser{rest: args, takes: create, command: true}
	p.each(func(flag, value string) bool {
		switch flag {
		case "bundle", "b":
			bundle = value
		case "config", "f":
			name = value
		case "help", "h":
			help = true
		}
		return true
	})
	switch {
	case help:
		return ""
	case name != "config.json": // crun resolves it before it enters the bundle
		return name
	}
	return filepath.Join(bundle, name)
}

type parser struct {
	rest    []string
	takes   []string // the names of flags with a value
	command bool     // the command has been read
}

// each calls do with each flag and its value, and with each other argument, whose
// name is "", until do returns false.
func (p *parser) each(do func(name, value string) bool) {
	for len(p.rest) > 0 {
		arg := p.rest[0]
		p.rest = p.rest[1:]
		if arg == "--" {
			continue
		}
		if len(arg) < 2 || arg[0] != '-' {
			if !do("", arg) {
				return
			}
			continue
		}
		name, value, inline := strings.Cut(strings.TrimPrefix(arg[1:], "-"), "=")
		if !inline && len(name) > 1 && arg[1] != '-' && p.short(name) {
			name, value, inline = name[:1], name[1:], true // -b/run/c
		}
		if !inline && p.wants(name) {
			value, p.rest = p.rest[0], p.rest[1:]
		}
		if name != "" && !do(name, value) {
			return
		}
	}
}

// short says whether "-name" is a flag of one letter with its value behind it. The
// names of long flags come first: runc takes them with one dash as well.
func (p *parser) short(name string) bool {
	known := slices.Contains(p.takes, name) || slices.Contains(switches, name)
	return !known && slices.Contains(p.takes, name[:1])
}

// wants says whether a flag takes the next argument. Of a flag that a later runtime
// may have brought that is found out from what follows: before the command, what
// is not a command is a value.
func (p *parser) wants(name string) bool {
	if len(p.rest) == 0 {
		return false
	}
	if slices.Contains(p.takes, name) {
		return true
	}
	next := p.rest[0]
	return !p.command && !slices.Contains(switches, name) && !strings.HasPrefix(next, "-") && !slices.Contains(commands, next)
}

var commands = []string{
	"checkpoint", "create", "delete", "events", "exec", "features", "help", "info", "init", "kill", "list", "mounts",
	"pause", "ps", "restore", "resume", "run", "spec", "start", "state", "update", "completion",
}
