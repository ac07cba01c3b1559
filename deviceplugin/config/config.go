// Package config is the configuration file of the device plugin: that of the
// reference (github.com/NVIDIA/k8s-device-plugin, api/config/v1, as of v0.20.0),
// version v1, with every key of it, and two sections of our own, devices and
// health.
//
// It is pure: bytes come in, and a Config that nobody changes any more goes out.
// The command line and the environment, which win over the file, are laid over
// it by Config.With.
//
// The struct is where everything about a key is written down: its json tag is
// its name, enum what may be written, doc what it is for. The check of a file and
// the published schema (docs/config.schema.json) are both made of that.
package config

//go:generate go run ./schema -o ../../docs/config.schema.json

import (
	"errors"
	"fmt"
	"reflect"

	strict "github.com/gpuready/gpuready/internal/config"
)

// Version is the one version of the file that there is.
const Version = "v1"

// ErrNotChosen is what is told of a configuration while nobody has said which one is
// to be used. It is no fault, but nothing can be served.
var ErrNotChosen = errors.New("no configuration is chosen yet")

// Config is a configuration file. What the file does not set is nil or empty.
// It is never changed once it is made.
type Config struct {
	Version   string    `json:"version,omitempty" enum:"v1" doc:"Version of the file. Default: v1."`
	Flags     Flags     `json:"flags" doc:"What can be given on the command line and in the environment too, both of which win over the file."`
	Resources Resources `json:"resources" doc:"Names of the resources. The first pattern that matches names a device; what none matches has the name that it would have anyway."`
	Sharing   Sharing   `json:"sharing" doc:"Devices that several containers share. Either timeSlicing or mps, not both."`
	Imex      Imex      `json:"imex" doc:"IMEX channels, for memory shared between nodes."`
	Devices   Devices   `json:"devices" doc:"Which devices are advertised at all. Not known to the reference."`
	Health    Health    `json:"health" doc:"What makes a device unhealthy, and healthy again. Not known to the reference."`
}

// Unknown says what becomes of keys that are not known.
type Unknown int

// What becomes of unknown keys.
const (
	Refuse Unknown = iota // the file is refused
	Warn                  // they are passed over, each by its name
)

// Options change how a file is read.
type Options struct {
	UnknownKeys Unknown
}

// Ignored is a key that is not known and was passed over.
type Ignored struct {
	Path string // "flags.migStrategi"
	Hint string // `unknown key, did you mean "migStrategy"?`
}

// Parse reads a configuration file. source names it in errors, which are
// *config.Error of internal/config, or several of them joined: each names the
// field and what to do.
//
// Names of resources are completed as the reference does: nvidia.com/ is put
// before one that has no such prefix, and renameByDefault gives each shared
// resource that has no rename of its own one that ends in .shared.
func Parse(data []byte, source string, o Options) (*Config, []Ignored, error) {
	c := &Config{}
	var ignored []Ignored
	if o.UnknownKeys == Warn {
		strangers, err := strict.Ignoring(data, c, source)
		if err != nil {
			return nil, nil, err
		}
		for _, key := range strangers {
			ignored = append(ignored, Ignored{Path: key.Path, Hint: key.Err.Error()})
		}
	} else if err := strict.Strict(data, c, source); err != nil {
		return nil, nil, err
	}
	c.complete()
	p := problems{source: source}
	p.sections(c)
	if err := errors.Join(p.all...); err != nil {
		return nil, ignored, err
	}
	return c, ignored, nil
}

// With returns the configuration with what the command line and the environment
// say in the place of what the file says: fields of f that are nil change nothing.
func (c *Config) With(f Flags, imex Imex) *Config {
	laid := *c
	laid.Flags = laid.Flags.with(f)
	if imex.ChannelIDs != nil {
		laid.Imex.ChannelIDs = imex.ChannelIDs
	}
	if imex.Required != nil {
		laid.Imex.Required = imex.Required
	}
	return &laid
}

// Check says what is wrong with a configuration that is complete, the command
// line laid over it: each section by itself, and the sections together. Errors
// name the field by its path in the file, and no source.
func (c *Config) Check() error {
	p := problems{}
	p.sections(c)
	p.together(c)
	return errors.Join(p.all...)
}

// problems collects what is wrong, so that all of it is said at once.
type problems struct {
	source string
	all    []error
}

func (p *problems) add(path, format string, args ...any) {
	p.all = append(p.all, &strict.Error{Source: p.source, Path: path, Err: fmt.Errorf(format, args...)})
}

// sections checks what can be told from one section alone.
func (p *problems) sections(c *Config) {
	p.tags(reflect.ValueOf(c), "", "")
	p.flags(c.Flags)
	p.resources(c.Resources)
	p.sharing(c)
	p.imex(c.Imex)
	p.devices(c.Devices)
	p.health(c.Health)
}

// together checks what the flags and the sections make of each other. It waits
// for the command line, which may have another word than the file.
func (p *problems) together(c *Config) {
	if c.Sharing.MPS != nil && c.Flags.MIG() == MIGMixed {
		p.add("sharing.mps", "MPS cannot share MIG devices, and flags.migStrategy is mixed; write none or single, or remove sharing.mps")
	}
}

// complete gives names their full form.
func (c *Config) complete() {
	if c.Version == "" {
		c.Version = Version // as the reference does
	}
	for _, list := range [][]Resource{c.Resources.GPUs, c.Resources.MIG} {
		for i := range list {
			list[i].Name = qualified(list[i].Name)
		}
	}
	for _, r := range []*Replicated{c.Sharing.TimeSlicing, c.Sharing.MPS} {
		if r != nil {
			r.complete()
		}
	}
	if mps := c.Sharing.MPS; mps != nil && mps.FailRequestsGreaterThanOne == nil {
		mps.FailRequestsGreaterThanOne = new(true) // the reference's default for MPS alone
	}
}
