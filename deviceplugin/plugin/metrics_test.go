package plugin_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/gpuready/gpuready/deviceplugin/config"
	"github.com/gpuready/gpuready/deviceplugin/plan"
	"github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/internal/gpu"
	"github.com/gpuready/gpuready/internal/nodestate"
)

func registeredMetrics() (*plugin.Metrics, *prometheus.Registry) {
	m, reg := plugin.NewMetrics(), prometheus.NewPedanticRegistry()
	m.Register(reg)
	return m, reg
}

// scrape returns the lines of these metrics as Prometheus gets them, sorted by name.
func scrape(t *testing.T, reg prometheus.Gatherer, names ...string) []string {
	t.Helper()
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(reg, promhttp.HandlerOpts{}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	require.Equal(t, 200, answer.Code, answer.Body.String())
	lines := []string{}
	for line := range strings.Lines(answer.Body.String()) {
		name, is := strings.CutPrefix(strings.TrimSpace(line), "gpuready_deviceplugin_")
		if is && (len(names) == 0 || slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(name, n+"{") || strings.HasPrefix(name, n+" ") })) {
			lines = append(lines, name)
		}
	}
	return lines
}

// Counters that alerts use begin at 0: Prometheus sees no
// increase from no series to 1.
func TestCountersOfAlertsStartAtZero(t *testing.T) {
	m, reg := registeredMetrics()
	require.Equal(t, []string{
		"config_refused 0", `config_reloads_total{result="ok"} 0`, `config_reloads_total{result="refused"} 0`,
		"first_list_seconds 0", `nvml_errors_total{code="HUNG"} 0`, "state_unwritten 0", "watching 0",
	}, scrape(t, reg))
	m.SetState(nodestate.Waiting, "NoKubelet", map[string]bool{config.GPU: false})
	require.Equal(t, []string{
		`allocations_total{code="FailedPrecondition",resource="nvidia.com/gpu"} 0`,
		`allocations_total{code="Internal",resource="nvidia.com/gpu"} 0`,
		`allocations_total{code="InvalidArgument",resource="nvidia.com/gpu"} 0`,
		`allocations_total{code="NotFound",resource="nvidia.com/gpu"} 0`,
		`allocations_total{code="OK",resource="nvidia.com/gpu"} 0`,
	}, scrape(t, reg, "allocations_total"))
}

// A label with invalid UTF-8 would end the program.
func TestInvalidUTF8IsReplacedInLabels(t *testing.T) {
	m, reg := registeredMetrics()
	m.SetConfig("abc", "a\xffb", nil)
	m.CountEvent(gpu.Event{Kind: gpu.EventXID, UUID: "GPU-\xff", XID: 79})
	require.Equal(t, []string{"config_info{hash=\"abc\",name=\"a\uFFFDb\"} 1", "xids_total{gpu=\"GPU-\uFFFD\",xid=\"79\"} 1"}, scrape(t, reg, "config_info", "xids_total"))
}

func TestDevicesAreCountedByStateAndReason(t *testing.T) {
	m, reg := registeredMetrics()
	bad := gpu.Fault{Reason: "XID", Message: "XID 79"}
	m.SetPlan(plan.Plan{
		Resources: []plan.Resource{{Name: config.GPU, Devices: []plan.Device{
			{ID: "GPU-a::0", GPU: "GPU-a", Replicas: 2}, {ID: "GPU-a::1", GPU: "GPU-a", Replica: 1, Replicas: 2},
			{ID: "GPU-b::0", GPU: "GPU-b", Replicas: 2, Fault: bad}, {ID: "GPU-b::1", GPU: "GPU-b", Replica: 1, Replicas: 2, Fault: bad},
		}}},
		LeftOut: []plan.LeftOut{{Reason: plan.ReasonExcluded}, {Reason: plan.ReasonExcluded}},
	})
	require.Equal(t, []string{
		`device_healthy{device="GPU-a",reason="",resource="nvidia.com/gpu"} 1`,
		`device_healthy{device="GPU-b",reason="XID",resource="nvidia.com/gpu"} 0`,
		`devices{reason="",resource="nvidia.com/gpu",state="Healthy"} 2`,
		`devices{reason="XID",resource="nvidia.com/gpu",state="Unhealthy"} 2`,
		`devices_left_out{reason="Excluded"} 2`,
	}, scrape(t, reg, "device_healthy", "devices", "devices_left_out"))
	m.SetPlan(plan.Plan{})
	require.Empty(t, scrape(t, reg, "device_healthy", "devices", "devices_left_out"), "what is no more is not shown")
}

func TestOnlyTheLastPhaseIsShown(t *testing.T) {
	m, reg := registeredMetrics()
	m.SetState(nodestate.Waiting, "NoDriver", nil)
	m.SetState(nodestate.Degraded, "UnhealthyDevices", map[string]bool{config.GPU: true, "nvidia.com/mig-1g.10gb": false})
	require.Equal(t, []string{
		`phase{phase="Degraded",reason="UnhealthyDevices"} 1`,
		`registered{resource="nvidia.com/gpu"} 1`,
		`registered{resource="nvidia.com/mig-1g.10gb"} 0`,
	}, scrape(t, reg, "phase", "registered"))
}

func TestEventsAreCounted(t *testing.T) {
	m, reg := registeredMetrics()
	m.ObserveAllocation(config.GPU, 90*time.Microsecond, nil)
	m.ObserveAllocation(config.GPU, 50*time.Millisecond, status.Error(codes.InvalidArgument, "unhealthy"))
	m.ObservePreference(config.GPU, time.Millisecond)
	m.ObserveScore(config.GPU, 1)
	m.CountRegistration(config.GPU, nil)
	m.CountEvent(gpu.Event{Kind: gpu.EventXID, UUID: "GPU-a", XID: 79})
	m.CountEvent(gpu.Event{Kind: gpu.EventLost, UUID: "GPU-a"})
	m.CountNVMLError("GPU_IS_LOST")
	m.SetConfig("abc", "", nil)
	m.SetConfig("def", "team-a", []string{"flags.migStrategie"})
	m.CountReload(nil)
	m.CountReload(errors.New("no such key"))
	require.Equal(t, []string{
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="1e-05"} 0`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="2.5e-05"} 0`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="5e-05"} 0`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="0.0001"} 1`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="0.00025"} 1`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="0.0005"} 1`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="0.001"} 1`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="0.0025"} 1`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="0.005"} 1`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="0.01"} 1`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="0.025"} 1`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="0.05"} 2`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="0.1"} 2`,
		`allocation_duration_seconds_bucket{resource="nvidia.com/gpu",le="+Inf"} 2`,
		`allocations_total{code="InvalidArgument",resource="nvidia.com/gpu"} 1`,
		`allocations_total{code="OK",resource="nvidia.com/gpu"} 1`,
		`config_ignored_key{key="flags.migStrategie"} 1`,
		`config_info{hash="def",name="team-a"} 1`,
		`config_reloads_total{result="ok"} 1`,
		`config_reloads_total{result="refused"} 1`,
		`events_total{kind="Lost"} 1`,
		`events_total{kind="XID"} 1`,
		`nvml_errors_total{code="GPU_IS_LOST"} 1`,
		`nvml_errors_total{code="HUNG"} 0`,
		`preferred_allocation_duration_seconds_count{resource="nvidia.com/gpu"} 1`,
		`preferred_allocation_score_ratio_sum{resource="nvidia.com/gpu"} 1`,
		`registrations_total{code="OK",resource="nvidia.com/gpu"} 1`,
		`xids_total{gpu="GPU-a",xid="79"} 1`,
	}, scrape(t, reg, "allocation_duration_seconds_bucket", "allocations_total", "config_ignored_key", "config_info", "config_reloads_total", "events_total", "nvml_errors_total",
		"preferred_allocation_duration_seconds_count", "preferred_allocation_score_ratio_sum", "registrations_total", "xids_total"))
}
