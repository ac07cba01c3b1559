package metrics

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/progress"
)

var began = time.Unix(1000, 0)

func TestExposedMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	m.Reconciled("nodes", began, began.Add(20*time.Millisecond), errors.New("x"))
	m.Reconciled("policy", began, began.Add(2*time.Second), nil)
	m.CountLookup(Absent)
	s := Snapshot{
		Upgrade: map[string]int{"upgrade-failed": 1}, Conditions: map[string]bool{"Ready": true, "Degraded": false}, Problems: map[string]int{"PrecompiledImageMissing": 2},
		Steps: Steps([]v1.ProvisioningStatus{{Step: "driver", Count: 3, SumSeconds: 40, Buckets: []int64{1, 0, 2}}}),
	}
	const pool = "amd64/ubuntu22.04"
	s.Add(Place{pool, "", progress.Ready}, 1, time.Time{})
	for i := range 2 {
		s.Add(Place{pool, progress.Driver, progress.Failed}, 1, began.Add(time.Duration(i)*time.Hour))
	}
	m.SetSnapshot(s)
	require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP gpuready_operator_nodes GPU nodes by pool, the first state that they have not reached (done: all are), and status (waiting, failed, ready, excluded, unknown).
# TYPE gpuready_operator_nodes gauge
gpuready_operator_nodes{pool="amd64/ubuntu22.04",state="done",status="ready"} 1
gpuready_operator_nodes{pool="amd64/ubuntu22.04",state="driver",status="failed"} 2
# HELP gpuready_operator_nodes_since_timestamp_seconds Unix time at which the longest-waiting node of the group began to wait; not for ready and excluded nodes.
# TYPE gpuready_operator_nodes_since_timestamp_seconds gauge
gpuready_operator_nodes_since_timestamp_seconds{pool="amd64/ubuntu22.04",state="driver",status="failed"} 1000
# HELP gpuready_operator_provisioning_seconds Seconds from a node's creation until it reached the step; stored in the policy's status, so it survives restarts of the operator.
# TYPE gpuready_operator_provisioning_seconds histogram
gpuready_operator_provisioning_seconds_bucket{step="driver",le="5"} 1
gpuready_operator_provisioning_seconds_bucket{step="driver",le="10"} 1
gpuready_operator_provisioning_seconds_bucket{step="driver",le="15"} 3
gpuready_operator_provisioning_seconds_bucket{step="driver",le="+Inf"} 3
gpuready_operator_provisioning_seconds_sum{step="driver"} 40
gpuready_operator_provisioning_seconds_count{step="driver"} 3
# HELP gpuready_operator_policy_condition Conditions of the policy in force: 1 where True.
# TYPE gpuready_operator_policy_condition gauge
gpuready_operator_policy_condition{type="Degraded"} 0
gpuready_operator_policy_condition{type="Ready"} 1
# HELP gpuready_operator_last_reconcile_timestamp_seconds When a pass last ended well, in seconds since 1970; 0: none has by this process.
# TYPE gpuready_operator_last_reconcile_timestamp_seconds gauge
gpuready_operator_last_reconcile_timestamp_seconds{about="policy"} 1002
`), "gpuready_operator_nodes", "gpuready_operator_nodes_since_timestamp_seconds", "gpuready_operator_provisioning_seconds", "gpuready_operator_policy_condition", "gpuready_operator_last_reconcile_timestamp_seconds"))
}

func TestPoolsAreBounded(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := New(reg)
	var s Snapshot
	for i := range 5000 {
		s.Add(Place{fmt.Sprint(i % 500), "", progress.Ready}, 1, time.Time{})
	}
	m.SetSnapshot(s)
	n, err := testutil.GatherAndCount(reg, "gpuready_operator_nodes")
	require.NoError(t, err)
	require.Equal(t, 51, n)
}

func TestWritesAreCounted(t *testing.T) {
	answer := http.StatusOK
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(answer) }))
	defer api.Close()
	reg := prometheus.NewRegistry()
	client := http.Client{Transport: New(reg).Transport(http.DefaultTransport)}
	do := func(method, path, kind string, code int) {
		answer = code
		r, err := http.NewRequestWithContext(t.Context(), method, api.URL+path, nil)
		require.NoError(t, err)
		r.Header.Set("Content-Type", kind)
		response, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
	}
	do("PATCH", "/apis/apps/v1/namespaces/gpus/daemonsets/x", "application/apply-patch+yaml", 201)
	do("PATCH", "/api/v1/nodes/n1", "application/merge-patch+json", 409)
	do("POST", "/api/v1/namespaces/a/pods/x/eviction", "", 429)
	do("PUT", "/api/v1/namespaces/a/finalize", "", 200)
	do("PUT", "/k8s/clusters/c-1/apis/nvidia.com/v1/clusterpolicies/p/status", "", 422)
	do("GET", "/api/v1/nodes", "", 200)
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() != "gpuready_operator_api_writes_total" {
			continue
		}
		for _, series := range f.GetMetric() {
			var labels []string
			for _, l := range series.GetLabel() {
				labels = append(labels, l.GetValue())
			}
			if n := series.GetCounter().GetValue(); n > 0 {
				got[strings.Join(labels, " ")] = n
			}
		}
	}
	require.Equal(t, map[string]float64{"ok daemonsets apply": 1, "conflict nodes patch": 1, "refused pods evict": 1, "ok namespaces update": 1, "refused clusterpolicies update": 1}, got)
}
