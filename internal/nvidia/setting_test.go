package nvidia

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEverySettingIsListedOnceWithAReason(t *testing.T) {
	for name, settings := range map[string][]Setting{"toolkit": ToolkitSettings(), "validator": ValidatorSettings()} {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			for _, s := range settings {
				require.NotEmpty(t, s.Why)
				require.LessOrEqual(t, len(s.Why), 160, "the policy's status has room for it: %s", s.Why)
				require.True(t, s.Variable != "" || len(s.Flags) > 0)
				for _, name := range append(append([]string{}, s.Flags...), s.Variable) {
					require.False(t, name != "" && seen[name], name)
					seen[name] = true
				}
			}
		})
	}
}

func TestOnlyValuesWithAnotherEffectAreUnfollowed(t *testing.T) {
	settings := []Setting{{Variable: "A", Same: []string{"1"}, Why: "a"}, {Variable: "B_*", Why: "b"}, {Flags: []string{"c"}, Why: "c"}}
	for line, want := range map[string]string{
		"A=": "", "A=1": "", "A= 1": "", "A=2": "a", "AB=2": "", "B_=x": "b", "B_C=x": "b", "B=x": "", "=x": "", "c=x": "",
	} {
		name, value, _ := strings.Cut(line, "=")
		require.Equal(t, want, Unfollowed(settings, name, value), line)
	}
}
