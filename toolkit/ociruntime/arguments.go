package main

// This file parses the command line of an OCI runtime, as far as needed to find
// the container that is created. It knows the flags of runc, crun and youki. Each may be
// written "--flag value" or "--flag=value".

import (
	"path/filepath"
	"slices"
	"strings"
)

// call is one call of a runtime. Paths are relative to the working directory.
type call struct {
	Command   string // "create"; "" if there is none
	Config    string // the configuration of the created container; "" for other commands and for help
	Log       string // the file for errors, "" for none
	LogFormat string // "json", "text" or ""
}

// Creates reports whether the call creates a container.
func (c call) Creates() bool { return c.Config != "" }

// Flags that take a value: runc's main.go, create.go and run.go; crun's src/crun.c,
// src/create.c and src/run.c; youki's crates/liboci-cli.
var (
	globalValueFlags = []string{"root", "r", "log", "l", "log-format", "log-level", "rootless", "cgroup-manager", "criu"}
	createValueFlags = []string{"bundle", "b", "config", "f", "console-socket", "c", "pid-file", "p", "pidfd-socket", "preserve-fds"}

	// switches are the known flags without a value.
	switches = []string{"debug", "systemd-cgroup", "s", "version", "v", "V", "help", "h"}
)

// parseCall reads the arguments after the program's name.
func parseCall(args []string) call {
	var call call
	p := parser{rest: args, takes: globalValueFlags}
	p.each(func(name, value string) bool {
		switch name {
		case "log", "l":
			call.Log = strings.TrimPrefix(value, "file:") // crun's notation
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

// config returns the path of the configuration in the arguments of create or run, "" if
// they request help.
func config(args []string) string {
	bundle, name := ".", "config.json"
	help := false
	p := parser{rest: args, takes: createValueFlags, command: true}
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
	case name != "config.json": // crun's --config is relative to the working directory, not to the bundle
		return name
	}
	return filepath.Join(bundle, name)
}

type parser struct {
	rest    []string
	takes   []string // the names of flags with a value
	command bool     // the command has been read
}

// each calls do for each flag with its value, and for each other argument with the name
// "", until do returns false.
func (p *parser) each(do func(name, value string) bool) {
	for len(p.rest) > 0 {
		arg := p.rest[0]
		p.rest = p.rest[1:]
		if arg == "--" { // before the container's ID, which is not needed
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
		if !inline && p.takesNext(name) {
			value, p.rest = p.rest[0], p.rest[1:]
		}
		if name != "" && !do(name, value) {
			return
		}
	}
}

// short reports whether "-name" is a one-letter flag followed by its value. Long flags take
// precedence, since runc accepts them with one dash as well.
func (p *parser) short(name string) bool {
	known := slices.Contains(p.takes, name) || slices.Contains(switches, name)
	return !known && slices.Contains(p.takes, name[:1])
}

// takesNext reports whether a flag takes the next argument as its value. For an unknown
// flag, perhaps of a later runtime, it depends on the next argument: before the command,
// anything but a command is a value.
func (p *parser) takesNext(name string) bool {
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
