package distro

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpuready/gpuready/internal/host"
)

// unitDirs are where systemd looks for units, the strongest first (systemd.unit(5)).
var unitDirs = []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}

// programs are the runtimes, with the options that name their configuration.
var programs = map[string][]string{
	"containerd": {"--config", "-c"},
	"dockerd":    {"--config-file"},
	"crio":       {"--config", "-c"},
}

// unitConfig is the configuration that the command line of the first of these units
// names, "" if none does. A unit of a program that is no runtime (k0s has a --config
// as well) names none.
func unitConfig(root *host.Root, units []string) string {
	for _, unit := range units {
		if text := unitText(root, unit); text != "" {
			return commandConfig(text)
		}
	}
	return ""
}

// unitText is a unit with its drop-ins behind it, as systemd reads them.
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

// commandConfig is the configuration that the last ExecStart of a unit's text names.
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
	var options []string
	for i, word := range command {
		word = replace(word, environment)
		if options == nil {
			options = programs[path.Base(strings.TrimLeft(word, "-@:+!"))]
			continue
		}
		for _, option := range options {
			if name, is := strings.CutPrefix(word, option+"="); is && absolute(name) == nil {
				return name
			}
			if word == option && i+1 < len(command) {
				if name := replace(command[i+1], environment); absolute(name) == nil {
					return name
				}
			}
		}
	}
	return ""
}

// words splits as systemd does, as far as paths need it: quotes hold words together.
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

// replace puts in variables, once: "${NAME}" and a word that is "$NAME".
func replace(word string, environment map[string]string) string {
	if name, is := strings.CutPrefix(word, "$"); is && !strings.HasPrefix(name, "{") {
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
