package drivertag

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTag(t *testing.T) {
	for kernel, want := range map[string]string{
		"4.18.0-372.51.1.el8_6.x86_64": "525.105.17-4.18.0-372.51.1.el8_6.x86_64-rhcos4.12",
		"6.12.95+deb12-cloud-amd64":    "525.105.17-6.12.95_deb12-cloud-amd64-rhcos4.12",
	} {
		tag, err := Tag("525.105.17", kernel, "rhcos4.12")
		require.NoError(t, err)
		require.Equal(t, want, tag)
	}
	for _, kernel := range []string{"", "a/b", strings.Repeat("1", 130)} {
		_, err := Tag("1", kernel, "os")
		require.Error(t, err)
	}
}
