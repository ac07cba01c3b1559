package schematest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestAPIServerAcceptsTheDefinition(t *testing.T) {
	_, err := Load()
	require.NoError(t, err)
}

// Random fails if a policy that the schema accepts cannot be decoded.
func TestTypesHoldWhatTheSchemaAccepts(t *testing.T) {
	s, err := Load()
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		p := s.Random(t)
		p.Spec.Daemonsets.RollingUpdate.Unavailable()
		if u := p.Spec.Driver.UpgradePolicy; u != nil {
			u.Unavailable()
		}
		p.DeepCopy()
	})
}
