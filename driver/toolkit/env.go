package toolkit

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/gpuready/gpuready/internal/nodestate/record"
)

// maxEnv bounds the file env, in bytes.
const maxEnv = 64 << 10

var envPattern = regexp.MustCompile(`^[A-Z_][A-Z0-9_]*$`)

// formatEnv returns variables as lines NAME='value', sorted by name, for a shell. Nothing is
// expanded between single quotes; a quote in a value closes them, is escaped, and reopens
// them.
func formatEnv(env map[string]string) (string, error) {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if err := checkVariable(name, env[name]); err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%s='%s'\n", name, strings.ReplaceAll(env[name], "'", `'\''`))
	}
	if b.Len() > maxEnv {
		return "", fmt.Errorf("%s has %d bytes, more than %d", envName, b.Len(), maxEnv)
	}
	return b.String(), nil
}

func checkVariable(name, value string) error {
	if !envPattern.MatchString(name) {
		return fmt.Errorf("%s: %q is not the name of a variable", envName, record.Clean(name, 100))
	}
	if strings.ContainsFunc(value, unicode.IsControl) || strings.ToValidUTF8(value, "") != value {
		return fmt.Errorf("%s: the value of %s has a control character", envName, name)
	}
	return nil
}

// parseEnv is the inverse of formatEnv. It rejects any text that formatEnv would not write.
func parseEnv(text string) (map[string]string, error) {
	env := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok || len(value) < 2 || value[0] != '\'' || value[len(value)-1] != '\'' {
			return nil, fmt.Errorf("%s: %q is not a line NAME='value'", envName, record.Clean(line, 100))
		}
		env[name] = strings.ReplaceAll(value[1:len(value)-1], `'\''`, "'")
	}
	again, err := formatEnv(env)
	if err != nil {
		return nil, err
	}
	if again != text {
		return nil, fmt.Errorf("%s is not in the format of the driver container", envName)
	}
	return env, nil
}

// maxNVIDIAEnv bounds the file env of NVIDIA's driver container, in bytes. It has the whole
// environment of the container: for each Service of the namespace, seven variables.
const maxNVIDIAEnv = 1 << 20

// nvidiaValue matches the permitted values of the variables that are read from that file. None
// can be a path, an option of a command, or a word with a meaning to a shell.
var nvidiaValue = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]{0,63})?$`)

// parseNVIDIAEnv returns variables by name from the env of NVIDIA's driver container. That has
// lines NAME="value" without escapes, and values may span several lines. Other lines are
// skipped. A variable that occurs twice is rejected: one may be a line of another value.
func parseNVIDIAEnv(text string, names ...string) (map[string]string, error) {
	env := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok || !slices.Contains(names, name) {
			continue
		}
		if n := len(value); n >= 2 && value[0] == '"' && value[n-1] == '"' {
			value = value[1 : n-1]
		}
		if !nvidiaValue.MatchString(value) {
			return nil, fmt.Errorf("%s: %s has the invalid value %q", envName, name, record.Clean(value, 100))
		}
		if _, twice := env[name]; twice {
			return nil, fmt.Errorf("%s: %s occurs twice", envName, name)
		}
		env[name] = value
	}
	return env, nil
}
