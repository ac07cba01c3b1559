package cluster

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfigErrorsNameTheValidRange(t *testing.T) {
	for name, test := range map[string]struct {
		config Config
		want   string
	}{
		"name":  {Config{Name: "Not/This"}, "lower-case letters"},
		"nodes": {Config{Nodes: -1}, "must be 1 to 100"},
		"image": {Config{Images: []string{"none.tar"}}, "make images"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Up(t.Context(), test.config)
			require.ErrorContains(t, err, test.want)
		})
	}
}
