package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/toolkit/hook/rootfs"
)

// hook is one operation on a container.
type hook struct {
	name  string
	about string
	flags []flag
	// needed returns the input for do, nil if there is nothing to do. If needed itself is
	// nil, do is always called.
	needed func(values) (any, error)
	do     func(container) error
}

type flag struct{ name, value, about string }

// values are the values of each flag, by its name.
type values map[string][]string

// last returns the last value of a flag, "" if there is none.
func (v values) last(name string) string {
	if n := len(v[name]); n > 0 {
		return v[name][n-1]
	}
	return ""
}

// container is the container that a hook changes.
type container struct {
	*rootfs.Root
	bundle
	values values
	found  any // the result of needed
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
	if c.Root, c.bundle, err = o.open(v.last(stateFlag)); err != nil {
		return err
	}
	return h.do(c)
}

// hookName splits the name of the hook from the arguments. nvidia-ctk has the hooks below
// its command "hook". The reference's flags before the name set its log level and are
// ignored.
func hookName(args []string) (name string, rest []string) {
	for len(args) > 0 && (args[0] == "hook" || slices.Contains([]string{"--debug", "-d", "--quiet"}, strings.TrimSuffix(strings.TrimSuffix(args[0], "=true"), "=false"))) {
		args = args[1:]
	}
	if len(args) == 0 {
		return "", nil
	}
	return args[0], args[1:]
}

// parseFlags parses the flags of a hook: --flag value, --flag=value, or with one dash. As
// in the reference, commas separate values.
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
      Runs them in this order, and stops at the first failure.

Hooks:
`)
	for _, h := range hooks() {
		if h.about != "" {
			b.WriteString(h.usage())
		}
	}
	fmt.Fprintf(&b, `
Each hook takes %s FILE, to read the state from a file.
A flag that may be repeated also takes comma-separated values.

All hooks only change the container's root file system, and nothing that is mounted into
it from the host. A call ends after %v at the latest. No program of the image is run.
Unknown hooks are skipped with a warning, so that a newer specification does not stop
containers.

Exit codes: 0 done, or nothing to do, or an unknown hook;
            1 failed or used incorrectly, with the reason on standard error.
`, stateFlag, maxTime)
	return b.String()
}
