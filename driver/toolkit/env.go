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

// formatEnv returns variables as lines NAME='value', sorted by name. A shell reads them as
// they are meant: nothing is expanded between single quotes, and a quote in a value ends
// them, is escaped, and begins them again.
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
		return fmt.Errorf("%s: %q is no name of a variable", envName, record.Clean(name, 100))
	}
	if strings.ContainsFunc(value, unicode.IsControl) || strings.ToValidUTF8(value, "") != value {
		return fmt.Errorf("%s: the value of %s has a control character", envName, name)
	}
	return nil
}

// parseEnv is the inverse of formatEnv. It takes nothing that formatEnv would not write.
func parseEnv(text string) (map[string]string, error) {
	env := map[string]string{}
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if !ok || len(value) < 2 || value[0] != '\'' || value[len(value)-1] != '\'' {
			return nil, fmt.Errorf("%s: %q is no line NAME='value'", envName, record.Clean(line, 100))
		}
		env[name] = strings.ReplaceAll(value[1:len(value)-1], `'\''`, "'")
	}
	again, err := formatEnv(env)
	if err != nil {
		return nil, err
	}
	if again != text {
		return nil, fmt.Errorf("%s is not as the driver container writes it", envName)
	}
	return env, nil
}
