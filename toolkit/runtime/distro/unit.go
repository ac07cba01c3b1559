package distro

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
)

// unitDirs are the directories that systemd searches for units, in order of precedence
// (systemd.unit(5)).
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// program describes a runtime's program.
type program struct {
	options []string // the options that name its configuration
	usual   string   // the configuration that it reads by default
}

var programs = map[string]program{
	"containerd": {[]string{"--config", "-c"}, "/etc/containerd/config.toml"},
	"dockerd":    {[]string{"--config-file"}, "/etc/docker/daemon.json"},
	"crio":       {[]string{"--config", "-c"}, "/etc/crio/crio.conf"},
}

// unitConfig returns the configuration on the command line of the first of these units
// that exists, "" if it cannot be determined. A unit of another program than a runtime
// has none: k0s has an option --config as well.
func unitConfig(root *host.Root, units []string) string {
	for _, unit := range units {
		if text := unitText(root, unit); text != "" {
			return commandConfig(text)
		}
	}
	return ""
}

// unitText returns a unit followed by its drop-ins, as systemd reads them.
func unitText(root *host.Root, unit string) string {
	var text string
	dropIns := map[string]string{}
	for _, dir := range unitDirs {
		if data, err := root.ReadFile(path.Join(dir, unit), maxFile); err == nil && text == "" {
			text = string(data) + "\n"
		}
		found, err := root.Glob(path.Join(dir, unit+".d"), "*.conf")
		if err != nil {
			continue
		}
		for _, name := range found {
			if _, stronger := dropIns[path.Base(name)]; !stronger {
				dropIns[path.Base(name)] = name
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(dropIns)) {
		if data, err := root.ReadFile(dropIns[name], maxFile); err == nil {
			text += string(data) + "\n"
		}
	}
	return text
}

// commandConfig returns the configuration of the last ExecStart in a unit's text.
func commandConfig(text string) string {
	environment := map[string]string{}
	var command []string
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch strings.TrimSpace(key) {
		case "Environment":
			for _, pair := range words(value) {
				name, content, _ := strings.Cut(pair, "=")
				environment[name] = content
			}
		case "ExecStart":
			command = words(value)
		}
	}
	for i := range command {
		command[i] = expand(command[i], environment)
	}
	at := slices.IndexFunc(command, func(word string) bool {
		_, ok := programs[base(word)]
		return ok
	})
	if at < 0 {
		return ""
	}
	return programs[base(command[at])].config(command[at+1:])
}

// base returns a program's name in a command line, where systemd allows prefixes to the
// path.
func base(word string) string { return path.Base(strings.TrimLeft(word, "-@:+!")) }

// config returns the configuration that the arguments name, "" if it is not a path.
func (p program) config(arguments []string) string {
	for i, word := range arguments {
		for _, option := range p.options {
			name, ok := strings.CutPrefix(word, option+"=")
			if word == option {
				name, ok = "", true
				if i+1 < len(arguments) {
					name = arguments[i+1]
				}
			}
			switch {
			case ok && absolute(name) == nil:
				return name
			case ok:
				return ""
			}
		}
	}
	return p.usual
}

// words splits a command line as systemd does, as far as paths need it: quotes group
// words.
func words(s string) []string {
	var all []string
	var word strings.Builder
	var quote rune
	begun := false
	for _, c := range s {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, begun = c, true
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n' || c == '\r'):
			if begun {
				all = append(all, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	if begun {
		all = append(all, word.String())
	}
	return all
}

// expand expands variables, once: "${NAME}" and a word that is "$NAME".
func expand(word string, environment map[string]string) string {
	if name, ok := strings.CutPrefix(word, "$"); ok && !strings.HasPrefix(name, "{") {
		return environment[name]
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(word, "${")
		out.WriteString(before)
		name, after, closed := strings.Cut(rest, "}")
		if !found || !closed {
			return out.String()
		}
		out.WriteString(environment[name])
		word = after
	}
}
