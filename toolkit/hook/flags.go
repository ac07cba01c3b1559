package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/hook/bundle"
	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// hook is one thing that is done to a container.
type hook struct {
	name  string
	about string
	flags []flag
	// needed says whether there is anything to do; nil: always. What it returns
	// is handed to do.
	needed func(values) (any, error)
	do     func(container) error
}

type flag struct{ name, value, about string }

// values are those of each flag, by its name.
type values map[string][]string

// last is the value of a flag that is given once; "" if it is not given.
func (v values) last(name string) string {
	if n := len(v[name]); n > 0 {
		return v[name][n-1]
	}
	return ""
}

// container is what a hook works on.
type container struct {
	*rootfs.Root
	bundle.Bundle
	values values
	found  any // what needed returned
	warn   func(format string, a ...any)
}

const stateFlag = "--container-spec"

func (h hook) run(v values, o *opener, warn func(string, ...any)) error {
	c := container{values: v, warn: warn}
	if h.needed != nil {
		var err error
		if c.found, err = h.needed(v); err != nil || c.found == nil {
			return err
		}
	}
	if h.do == nil {
		return nil
	}
	var err error
	if c.Root, c.Bundle, err = o.open(v.last(stateFlag)); err != nil {
		return err
	}
	return h.do(c)
}

// hookName takes the name of the hook off the arguments. nvidia-ctk has the hooks
// below its command "hook"; the reference's flags before the name say how much to
// log, which is little here.
func hookName(args []string) (name string, rest []string) {
	for len(args) > 0 && (args[0] == "hook" || slices.Contains([]string{"--debug", "-d", "--quiet"}, strings.TrimSuffix(strings.TrimSuffix(args[0], "=true"), "=false"))) {
		args = args[1:]
	}
	if len(args) == 0 {
		return "", nil
	}
	return args[0], args[1:]
}

// parseFlags collects the values of a hook's flags: --flag value, --flag=value,
// or with one dash. As the reference has it, commas separate values.
func parseFlags(args []string, h hook) (v values, help bool, err error) {
	v = values{}
	for len(args) > 0 {
		name, value, inline := strings.Cut(args[0], "=")
		args = args[1:]
		if name == "--help" || name == "-h" {
			return nil, true, nil
		}
		name = "--" + strings.TrimPrefix(strings.TrimPrefix(name, "-"), "-")
		if name != stateFlag && !slices.ContainsFunc(h.flags, func(f flag) bool { return f.name == name }) {
			return nil, false, fmt.Errorf("unknown flag %q; it takes %s", name, h.flagNames())
		}
		if !inline {
			if len(args) == 0 {
				return nil, false, fmt.Errorf("flag %s wants a value", name)
			}
			value, args = args[0], args[1:]
		}
		if name == stateFlag {
			v[name] = []string{value}
			continue
		}
		v[name] = append(v[name], strings.Split(value, ",")...)
	}
	return v, false, nil
}

func (h hook) flagNames() string {
	if len(h.flags) == 0 {
		return "none"
	}
	var names []string
	for _, f := range h.flags {
		names = append(names, f.name)
	}
	return strings.Join(names, ", ")
}

func (h hook) usage() string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %s\n      %s\n", h.name, h.about)
	for _, f := range h.flags {
		fmt.Fprintf(&b, "      %-28s %s\n", f.name+" "+f.value, f.about)
	}
	return b.String()
}

func usage() string {
	var b strings.Builder
	b.WriteString(`Run by a container runtime as an OCI hook (createContainer), as a CDI specification
names it; the container's state is read from standard input.

Usage:
  gpu-cdi-hook HOOK [FLAGS]
  gpu-cdi-hook all -- HOOK [FLAGS] -- HOOK [FLAGS] ...
      Runs them in this order, and none behind one that fails.

Hooks:
`)
	for _, h := range hooks() {
		if h.about != "" {
			b.WriteString(h.usage())
		}
	}
	fmt.Fprintf(&b, `
Each hook takes %s FILE, to read the state from a file.
A flag that may be repeated also takes values with commas between them.

All work below the container's root file system only, on nothing that is mounted
into it from the host, and a call ends after %v at the latest. No program of the image is
run. Hooks of other names are passed over with a warning, so that a newer
specification does not stop containers.

Exit codes: 0 done, or nothing to do, or a hook that is not known;
            1 failed or used wrongly, the reason is on standard error.
`, stateFlag, maxTime)
	return b.String()
}
