package quickstart

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/version"
)

var (
	tagged = regexp.MustCompile(`v\d+\.\d+\.\d+`)
	chosen = regexp.MustCompile("--version \\S+|, version `[^`]+`")
	host   = regexp.MustCompile(`(?:https|oci)://([^/\s` + "`" + `)]+)/`)
)

// The page names one version, that of this tree, and hosts that the test stands in for.
func TestThePageNamesThisVersion(t *testing.T) {
	for _, page := range []string{"../../docs/quickstart.md", "../../README.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		commands := string(text)
		if strings.HasSuffix(page, "README.md") {
			_, commands, _ = strings.Cut(commands, "\n## Five minutes\n")
			commands, _, _ = strings.Cut(commands, "\n## ")
		}
		names := tagged.FindAllString(commands, -1)
		require.NotEmpty(t, names, page)
		for _, name := range names {
			require.Equal(t, version.Release(), name, page)
		}
		for _, name := range chosen.FindAllString(commands, -1) {
			require.Contains(t, name, strings.TrimPrefix(version.Release(), "v"), page)
		}
		for _, m := range host.FindAllStringSubmatch(commands, -1) {
			require.Contains(t, []string{registryHost, filesHost, "get.k3s.io"}, m[1], page)
		}
	}
}
