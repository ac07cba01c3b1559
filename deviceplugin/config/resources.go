package config

import (
	"strings"
)

// Names of resources, as in NVIDIA's device plugin.
const (
	prefix       = "nvidia.com/"
	sharedSuffix = ".shared"
	// maxName is the longest name, prefix included: NVIDIA's limit.
	maxName = 63

	// GPU is the resource of whole GPUs, and of MIG devices with the strategy single.
	GPU = prefix + "gpu"
)

// Resources names the resources of GPUs and MIG devices.
type Resources struct {
	GPUs []Resource `json:"gpus,omitempty" doc:"Names for whole GPUs, by their product."`
	MIG  []Resource `json:"mig,omitempty" doc:"Names for MIG devices, by their profile."`
}

// Resource names the devices that match a pattern.
type Resource struct {
	Pattern Pattern `json:"pattern" required:"true" doc:"Product of the GPU as nvidia-smi -L prints it, or profile of the MIG device (1g.10gb); * stands for any text, and the whole must match."`
	Name    string  `json:"name" required:"true" doc:"Name of the resource; nvidia.com/ is put before one that has no such prefix."`
}

// Pattern matches a whole text, in which * stands for any text.
type Pattern string

// Matches reports whether p matches the whole of text. Case matters, as in NVIDIA's device plugin
// since v0.20.0.
func (p Pattern) Matches(text string) bool {
	parts := strings.Split(string(p), "*")
	first, last := parts[0], parts[len(parts)-1]
	if len(parts) == 1 {
		return text == first
	}
	if len(text) < len(first)+len(last) || !strings.HasPrefix(text, first) || !strings.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(text, part)
		if !found {
			return false
		}
		text = after
	}
	return true
}

// covers reports whether p matches every text that q matches, so that q after p has no effect.
// A * in q stands for any text, which only a * in p can match.
func (p Pattern) covers(q Pattern) bool {
	return p.Matches(strings.ReplaceAll(string(q), "*", "\x00"))
}

// MIGName returns the resource of a MIG device whose profile no pattern matches, and
// whether it has one. A compute instance that is only a part of its GPU instance, such
// as 1c.3g.40gb, has none.
func MIGName(profile string) (string, bool) {
	if !wholeProfile().MatchString(profile) {
		return "", false
	}
	name := prefix + "mig-" + strings.ReplaceAll(profile, "+", ".")
	return name, nameProblem(name) == ""
}

// Profiles as go-nvlib spells them: "1g.10gb", "1g.10gb+me", "1g.24gb-me".
var (
	wholeProfile = compileOnce(`^[1-9][0-9]*g\.[0-9]+gb([+-][a-z][a-z.]*)?$`)
	wholeMIGName = compileOnce(`^nvidia\.com/mig-[1-9][0-9]*g\.[0-9]+gb([.-][a-z][a-z.]*)?$`)
)

// isWellKnown reports whether a resource of that name exists without being configured.
func isWellKnown(name string) bool { return name == GPU || wholeMIGName().MatchString(name) }

// qualifiedName adds the prefix to a name without it.
func qualifiedName(name string) string {
	if name == "" || strings.HasPrefix(name, prefix) {
		return name
	}
	return prefix + name
}

// subdomain matches a DNS subdomain as defined by Kubernetes (RFC 1123).
var subdomain = compileOnce(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// nameProblem returns what is wrong with the full name of a resource, or "".
func nameProblem(name string) string {
	short := strings.TrimPrefix(name, prefix)
	switch {
	case name == "":
		return "a resource needs a name"
	case len(name) > maxName:
		return "longer than 63 characters, prefix included; choose a shorter name"
	case strings.Contains(short, "/"):
		return "the prefix of every resource is nvidia.com/; remove the other one"
	case !subdomain().MatchString(short):
		return "not the name of a resource; write lower-case letters, digits, - and . only, beginning and ending with a letter or a digit"
	}
	return ""
}

// checkResources checks the section resources.
func (p *problems) checkResources(r Resources) {
	for _, list := range []struct {
		path      string
		resources []Resource
	}{{"resources.gpus", r.GPUs}, {"resources.mig", r.MIG}} {
		for i, resource := range list.resources {
			p.checkPattern(itemPath(list.path, i), resource.Pattern, list.path, list.resources[:i])
			p.checkName(itemPath(list.path, i)+".name", resource.Name)
		}
	}
}

// checkPattern checks a pattern in a list; before are the resources above it.
func (p *problems) checkPattern(path string, pattern Pattern, list string, before []Resource) {
	switch text := string(pattern); {
	case text == "":
		p.add(path+".pattern", "empty, so it matches nothing; write * for all")
		return
	case strings.TrimSpace(text) != text:
		p.add(path+".pattern", "%q begins or ends with a space, so it matches nothing; remove it", text)
		return
	case strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }):
		p.add(path+".pattern", "%q has a control character, so it matches nothing; remove it", text)
		return
	}
	for i, earlier := range before {
		if earlier.Pattern.covers(pattern) {
			p.add(path+".pattern", "%q can never match: %s, %q, matches everything before it; move it above that one", pattern, itemPath(list, i), earlier.Pattern)
			return
		}
	}
}

// checkName checks the full name of a resource.
func (p *problems) checkName(path, name string) {
	if why := nameProblem(name); why != "" {
		p.add(path, "%q: %s", name, why)
	}
}
