// Package joined encodes several hooks in one command line of gpu-cdi-hook, so that a
// container waits for one process:
//
//	gpu-cdi-hook all -- create-symlinks --link a::/b -- update-ldcache --folder /c
//
// They run in this order, up to the first failure.
package joined

import "slices"

// Command is the name of the hook that runs the others.
const Command = "all"

const separator = "--"

// Args returns the arguments after the program's name for hooks, each with its name and
// flags. A single hook is written as itself, and none as nil. No argument may be "--".
func Args(hooks ...[]string) []string {
	hooks = slices.DeleteFunc(slices.Clone(hooks), func(h []string) bool { return len(h) == 0 })
	switch len(hooks) {
	case 0:
		return nil
	case 1:
		return slices.Clone(hooks[0])
	}
	args := []string{Command}
	for _, h := range hooks {
		args = append(append(args, separator), h...)
	}
	return args
}

// Hooks is the inverse of Args. It returns false for arguments that name no hook.
func Hooks(args []string) (hooks [][]string, ok bool) {
	if len(args) == 0 || args[0] == separator {
		return nil, false
	}
	if args[0] != Command {
		return [][]string{slices.Clone(args)}, true
	}
	if len(args) < 3 || args[1] != separator {
		return nil, false
	}
	for _, arg := range args[1:] {
		if arg == separator {
			hooks = append(hooks, nil)
			continue
		}
		last := &hooks[len(hooks)-1]
		*last = append(*last, arg)
	}
	for _, h := range hooks {
		if len(h) == 0 || h[0] == Command {
			return nil, false
		}
	}
	return hooks, true
}
