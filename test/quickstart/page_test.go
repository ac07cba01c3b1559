package quickstart

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/internal/version"
)

// page is the page whose commands are run.
const page = "../../docs/install.md"

var (
	tagged  = regexp.MustCompile(`v\d+\.\d+\.\d+`)
	chosen  = regexp.MustCompile("charts/gpuready --version [^\\s`]+")
	host    = regexp.MustCompile(`(?:https|oci)://([^/\s` + "`" + `)]+)/`)
	instead = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| `([^`]+)` \\|$")
)

// renamed returns the page with the names of a release in its commands, as the page says in its section about
// releases.
func renamed(t *testing.T, text string) string {
	t.Helper()
	_, section, found := strings.Cut(text, "\n## From a release\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var names []string
	for _, m := range instead.FindAllStringSubmatch(section, -1) {
		names = append(names, m[1], m[2])
	}
	require.Len(t, names, 6, "chart, examples and manifests have other names")
	return strings.NewReplacer(names...).Replace(text)
}

// The page names one version, that of this tree, and hosts that the test stands in for. So does the README
// where it says how to install.
func TestThePageNamesThisVersion(t *testing.T) {
	for _, page := range []string{page, "../../README.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		commands := string(text)
		if strings.HasSuffix(page, "README.md") {
			_, rest, found := strings.Cut(commands, "\n## Install\n")
			require.True(t, found, "%s has no section Install", page)
			commands, _, _ = strings.Cut(rest, "\n## What is tested")
		} else {
			require.NotEmpty(t, tagged.FindString(commands), page)
			require.NotEmpty(t, chosen.FindString(commands), page)
		}
		for _, name := range tagged.FindAllString(commands, -1) {
			require.Equal(t, version.Release(), name, page)
		}
		for _, name := range chosen.FindAllString(commands, -1) {
			require.Equal(t, "charts/gpuready --version "+strings.TrimPrefix(version.Release(), "v"), name, page)
		}
		for _, m := range host.FindAllStringSubmatch(commands, -1) {
			require.Contains(t, []string{registryHost, filesHost, "get.k3s.io"}, m[1], page)
		}
	}
}

// The commands of the README that install on simulated GPUs are those of the page, which the test plays.
func TestTheREADMEInstallsAsThePage(t *testing.T) {
	commands := func(file, section, prompt string) (all []string) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		_, rest, found := strings.Cut(string(text), "\n## "+section+"\n")
		require.True(t, found, "%s has no section %s", file, section)
		rest, _, _ = strings.Cut(rest, "\n## ")
		for line := range strings.Lines(rest) {
			if command, is := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "    "+prompt); is {
				all = append(all, command)
			}
		}
		return all
	}
	all := commands("../../README.md", "Try it", "")
	simulated := slices.IndexFunc(all, func(c string) bool { return strings.HasPrefix(c, "kubectl label ") })
	require.Positive(t, simulated, all)
	require.GreaterOrEqual(t, len(all[simulated:]), 4)
	require.Subset(t, commands(page, "Five minutes without a GPU", "$ "), all[simulated:])
}

// What a release is called replaces every path of this tree in the commands, and nothing has been published
// under a name that the page does not warn of before.
func TestAReleaseHasOtherNames(t *testing.T) {
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	for _, section := range []string{"Five minutes without a GPU", "The same by manifests"} {
		_, commands, found := strings.Cut(renamed(t, string(text)), "\n## "+section+"\n")
		require.True(t, found, section)
		commands, _, _ = strings.Cut(commands, "\n## ")
		require.NotContains(t, commands, " deployments/", section)
		require.Contains(t, commands, " https://"+filesHost+filesPath+version.Release()+"/vectoradd.yaml\n", section)
	}
	before, _, _ := strings.Cut(string(text), registryHost+"/gpuready")
	require.Contains(t, before, "*No release has been published under these names yet.*")
}
