package config

import (
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/spf13/pflag"

	"github.com/gpuready/gpuready/internal/cmdline"
)

// Env gives flags that were not set on the command line the values that
// environment variables hold: names maps a flag to its variable. An empty
// variable counts as not set, since a manifest may set one to "" where it has no
// value. Call it after flags.Parse; flags.Changed is then true for what the command
// line or a variable has set.
func Env(flags *pflag.FlagSet, names map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(names)) {
		flag := flags.Lookup(name)
		if flag == nil {
			return fmt.Errorf("environment variable %s: there is no flag --%s", names[name], name)
		}
		value := os.Getenv(names[name])
		if flag.Changed || value == "" {
			continue
		}
		if err := cmdline.SetFromVariable(flags, name, names[name], value); err != nil {
			return err
		}
	}
	return nil
}

// Describe adds to the usage of each flag the name of its environment variable,
// for --help. Call it before flags.Parse.
func Describe(flags *pflag.FlagSet, names map[string]string) {
	for name, variable := range names {
		if flag := flags.Lookup(name); flag != nil {
			flag.Usage += " [$" + variable + "]"
		}
	}
}
