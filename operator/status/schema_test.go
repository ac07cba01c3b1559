package status

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1/schematest"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/progress"
)

func TestAPIServerAcceptsAnyStatus(t *testing.T) {
	s, err := schematest.Load()
	require.NoError(t, err)
	long := strings.Repeat("é\n\"", 20000)
	crowd := input()
	var nodes []Node
	for i := range 300 {
		n := node(fmt.Sprintf("node-%d", i), progress.Failed, progress.ReasonStarting)
		n.Message, n.Since, n.Pool.Kernel = long, time.Time{}, fmt.Sprint(i)
		nodes = append(nodes, n)
		crowd.Choices = append(crowd.Choices, driver.Choice{Pool: n.Pool, Problem: &driver.Problem{Reason: driver.OSUnknown, Message: long}})
		crowd.Unserved = append(crowd.Unserved, fmt.Sprint(i, long))
		crowd.Rolling = append(crowd.Rolling, fmt.Sprint(i))
	}
	crowd.Tally = Count(nodes)
	crowd.Err, crowd.UpgradeError = errors.New(long), long
	crowd.Upgrade = &v1.UpgradeStatus{Total: 300, Failed: 300}
	other := input()
	other.Verdict = OtherOperator("Deployment a/b", "gpuready.io/operator=gpuready")
	ignored := input()
	ignored.Verdict = Ignored("older")
	for name, in := range map[string]Input{"nothing": input(), "a crowd": crowd, "another operator": other, "another policy": ignored} {
		p := in.Policy.DeepCopy()
		p.APIVersion, p.Kind, p.Status = v1.GroupVersion().String(), v1.Kind, Compute(in)
		require.NoError(t, s.Check(t.Context(), p), name)
	}
}
