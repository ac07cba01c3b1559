package config_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/gpu/gputest"
)

// The whole text must match, as in the reference since v0.20.0
// (github.com/NVIDIA/k8s-device-plugin/pull/1807).
func TestPatternMatchesWholeTexts(t *testing.T) {
	for _, c := range []struct {
		pattern config.Pattern
		text    string
		want    bool
	}{
		{"*", "", true}, {"*", "Tesla T4", true}, {"T4", "Tesla T4", false}, {"*T4", "Tesla T4", true},
		{"1g.10gb", "1g.10gb+me", false}, {"1g.10gb*", "1g.10gb+me", true}, {"1g.*gb", "1g.10gb+me", false},
		{"a*a", "a", false}, {"a*a", "aa", true}, {"*A100*80GB", "NVIDIA A100-SXM4-80GB", true}, {"*b*b*", "abc", false}, {"1g.10gb", "1gx10gb", false},
	} {
		require.Equal(t, c.want, c.pattern.Matches(c.text), "%q, %q", c.pattern, c.text)
	}
}

var few = rapid.StringMatching(`[ab]{0,6}`)

func TestPatternMatchesLikeItsRegularExpression(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*]{0,6}`).Draw(t, "pattern")
		text := few.Draw(t, "text")
		expression := "^" + strings.ReplaceAll(pattern, "*", ".*") + "$"
		require.Equal(t, regexp.MustCompile(expression).MatchString(text), config.Pattern(pattern).Matches(text))
	})
}

// A pattern is refused as "can never match" if and only if the earlier patterns match
// everything that it matches.
func TestOnlyAPatternThatCanNeverMatchIsRefused(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.StringMatching(`[ab*]{1,4}`).Draw(t, "first")
		second := rapid.StringMatching(`[ab*]{1,4}`).Draw(t, "second")
		_, err := parse(fmt.Sprintf("resources: {gpus: [{pattern: %q, name: a}, {pattern: %q, name: b}]}", first, second))
		left := 0
		// c stands for a text that no pattern spells out.
		for n := range 6 {
			for _, text := range texts("abc", n) {
				if config.Pattern(second).Matches(text) && !config.Pattern(first).Matches(text) {
					left++
				}
			}
		}
		require.Equal(t, left == 0, err != nil, "%v", err)
	})
}

func texts(letters string, n int) []string {
	if n == 0 {
		return []string{""}
	}
	var all []string
	for _, shorter := range texts(letters, n-1) {
		for _, letter := range letters {
			all = append(all, shorter+string(letter))
		}
	}
	return all
}

func TestMIGNamesMatchTheReference(t *testing.T) {
	for profile, want := range map[string]string{
		"1g.5gb": "nvidia.com/mig-1g.5gb", "7g.80gb": "nvidia.com/mig-7g.80gb", "1g.10gb+me": "nvidia.com/mig-1g.10gb.me",
		"1g.24gb+me.all": "nvidia.com/mig-1g.24gb.me.all", "1g.24gb-me": "nvidia.com/mig-1g.24gb-me", "2g.48gb+gfx": "nvidia.com/mig-2g.48gb.gfx",
		"1c.3g.40gb": "", "": "", "gpu": "",
	} {
		name, ok := config.MIGName(profile)
		require.Equal(t, want, name, profile)
		require.Equal(t, want != "", ok, profile)
		if ok {
			_, err := parse(slicing("{name: " + name + ", replicas: 2}"))
			require.NoError(t, err, "it can be shared")
		}
	}
}

func TestSelectorMatchesDevices(t *testing.T) {
	node := gputest.Node("a100-mig", 2)
	d := node.Devices[1]
	for selector, want := range map[config.Selector]bool{
		"1": true, "0": false, config.Selector(d.UUID): true, config.Selector(node.Devices[0].UUID): false, config.Selector(d.MIG[0].UUID): false,
		"0000:11:00.0": true, "00000000:11:00.0": true, "0000:10:00.0": false, "*A100*": true, "A100": false, "NVIDIA A100-SXM4-80GB": true, "1:0": false, "*": true,
	} {
		require.Equal(t, want, selector.MatchesGPU(d), selector)
	}
	for selector, want := range map[config.Selector]bool{
		"1:2": true, "1:1": false, "0:2": false, "1": false, config.Selector(d.MIG[2].UUID): true, config.Selector(d.MIG[1].UUID): false, config.Selector(d.UUID): false, "*": false,
	} {
		require.Equal(t, want, selector.MatchesMIG(d, d.MIG[2]), selector)
	}
	require.False(t, config.Selector("0").MatchesMIG(gpu.Device{}, gpu.MIGDevice{}))
}
