// Package config parses the configuration file of the device plugin. The file has all keys of
// that of NVIDIA's device plugin (github.com/NVIDIA/k8s-device-plugin, api/config/v1, version v1
// as of v0.20.0), and two more sections, devices and health.
//
// The package does no I/O: Parse turns bytes into an immutable Config. Config.With applies the
// command line and the environment, which override the file.
//
// The struct defines everything about a key: its json tag is the name, enum lists the
// valid values, doc describes the purpose. Both the check of a file and the published
// schema (docs/config.schema.json) are derived from it.
package config

//go:generate go test -run ^TestPublishedSchemaIsCurrent$ -update .

import (
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"sync"

	baseconfig "github.com/gpuready/gpuready/internal/config"
)

// Version is the only version of the file.
const Version = "v1"

// ErrNotChosen means that no configuration has been chosen yet. It is not a fault, but no device
// can be advertised before.
var ErrNotChosen = errors.New("no configuration is chosen yet")

// Config is a configuration file. Unset keys are nil or empty. It is never changed once
// created.
type Config struct {
	Version   string    `json:"version,omitempty" enum:"v1" doc:"Version of the file. Default: v1."`
	Flags     Flags     `json:"flags" doc:"What can be given on the command line and in the environment too, both of which win over the file."`
	Resources Resources `json:"resources" doc:"Names of the resources. The first pattern that matches names a device; what none matches has the name that it would have anyway."`
	Sharing   Sharing   `json:"sharing" doc:"Devices that several containers share. Either timeSlicing or mps, not both."`
	Imex      Imex      `json:"imex" doc:"IMEX channels, for memory shared between nodes."`
	Devices   Devices   `json:"devices" doc:"Which devices are advertised at all. Not known to the reference."`
	Health    Health    `json:"health" doc:"What makes a device unhealthy, and healthy again. Not known to the reference."`
}

// Unknown says what Parse does with unknown keys.
type Unknown int

// What Parse does with unknown keys.
const (
	Refuse Unknown = iota // return an error
	Warn                  // skip them and return each as Ignored
)

// Options configure Parse.
type Options struct {
	UnknownKeys Unknown
}

// Ignored is an unknown key that was skipped.
type Ignored struct {
	Path string // "flags.migStrategi"
	Hint string // `unknown key, did you mean "migStrategy"?`
}

// Parse parses a configuration file. source names it in errors, which are *config.Error
// of internal/config, or several of them joined: each names the field and the remedy.
//
// Parse completes the names of resources as NVIDIA's device plugin does: it adds the prefix
// nvidia.com/ where it is missing, and with renameByDefault gives each shared resource
// without a rename one that ends in .shared.
func Parse(data []byte, source string, o Options) (*Config, []Ignored, error) {
	c := &Config{}
	var ignored []Ignored
	if o.UnknownKeys == Warn {
		unknown, err := baseconfig.Ignoring(data, c, source)
		if err != nil {
			return nil, nil, err
		}
		for _, key := range unknown {
			ignored = append(ignored, Ignored{Path: key.Path, Hint: key.Err.Error()})
		}
	} else if err := baseconfig.Strict(data, c, source); err != nil {
		return nil, nil, err
	}
	c.setDefaults()
	p := problems{source: source}
	p.checkSections(c)
	if err := errors.Join(p.all...); err != nil {
		return nil, ignored, err
	}
	return c, ignored, nil
}

// With returns the configuration with the settings of the command line and the environment in
// place of its own. Nil fields change nothing.
func (c *Config) With(flags Flags, imex Imex) *Config {
	merged := *c
	merged.Flags = merged.Flags.override(flags)
	if imex.ChannelIDs != nil {
		merged.Imex.ChannelIDs = imex.ChannelIDs
	}
	if imex.Required != nil {
		merged.Imex.Required = imex.Required
	}
	return &merged
}

// Check validates the configuration that With returned: each section by itself and their
// combinations. Errors name the field by its path in the file, and no source.
func (c *Config) Check() error {
	p := problems{}
	p.checkSections(c)
	p.checkCombinations(c)
	return errors.Join(p.all...)
}

// problems collects errors, so that all are reported at once.
type problems struct {
	source string // named in each error
	all    []error
}

func (p *problems) add(path, format string, args ...any) {
	p.all = append(p.all, &baseconfig.Error{Source: p.source, Path: path, Err: fmt.Errorf(format, args...)})
}

// checkSections checks each section by itself.
func (p *problems) checkSections(c *Config) {
	p.checkTags(reflect.ValueOf(c), "", "")
	p.checkFlags(c.Flags)
	p.checkResources(c.Resources)
	p.checkSharing(c)
	p.checkImex(c.Imex)
	p.checkDevices(c.Devices)
	p.checkHealth(c.Health)
}

// checkCombinations checks combinations of flags and sections. It runs only after With, since
// the command line may override the file.
func (p *problems) checkCombinations(c *Config) {
	if c.Sharing.MPS != nil && c.Flags.MIG() == MIGMixed {
		p.add("sharing.mps", "MPS cannot share MIG devices, and flags.migStrategy is mixed; write none or single, or remove sharing.mps")
	}
}

// setDefaults adds the prefix to names of resources, and sets some defaults.
func (c *Config) setDefaults() {
	if c.Version == "" {
		c.Version = Version // as NVIDIA's device plugin does
	}
	for _, list := range [][]Resource{c.Resources.GPUs, c.Resources.MIG} {
		for i := range list {
			list[i].Name = qualifiedName(list[i].Name)
		}
	}
	for _, r := range []*Replicated{c.Sharing.TimeSlicing, c.Sharing.MPS} {
		if r != nil {
			r.setDefaults()
		}
	}
	if mps := c.Sharing.MPS; mps != nil && mps.FailRequestsGreaterThanOne == nil {
		mps.FailRequestsGreaterThanOne = new(true) // NVIDIA's default for MPS alone
	}
}

// compileOnce returns a function that compiles a regular expression at its first call. The
// device plugin starts sooner without compiling all those of this package, of which most
// configurations need none.
func compileOnce(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
