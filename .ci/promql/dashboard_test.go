package promql

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
)

// panelExpr returns the query of a panel of the dashboard, with Grafana's variables replaced.
func panelExpr(t *testing.T, title string) string {
	t.Helper()
	data, err := os.ReadFile(monitoring + "/dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(data, &dashboard); err != nil {
		t.Fatal(err)
	}
	for _, p := range dashboard.Panels {
		if p.Title == title {
			return strings.NewReplacer("$__rate_interval", "5m", "$node", ".*").Replace(p.Targets[0].Expr)
		}
	}
	t.Fatalf("the dashboard has no panel %q", title)
	return ""
}

// The counter of an XID appears with the first one, and a chart of its increase alone would stay at 0.
func TestDashboardShowsTheFirstXID(t *testing.T) {
	storage := promqltest.LoadedStorage(t, "load 1m\n  gpuready_deviceplugin_xids_total{node=\"n1\",gpu=\"GPU-1\",xid=\"79\"} _x10 1x20 2x10\n")
	defer func() { _ = storage.Close() }()
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	expr := panelExpr(t, "XIDs")
	for minute, want := range map[int]float64{11: 1, 14: 1, 17: 0, 25: 0} {
		q, err := engine.NewInstantQuery(t.Context(), storage, promql.NewPrometheusQueryOpts(false, 0, nil), expr, time.Unix(0, 0).Add(time.Duration(minute)*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		v, err := q.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatal(err)
		}
		if len(v) != 1 || v[0].F != want {
			t.Errorf("after %d minutes it shows %v, not %v", minute, v, want)
		}
		q.Close()
	}
}

// After a new pod of the device plugin has followed another, the counters of both are in the window.
func TestDashboardShowsPodsAfterThePluginIsReplaced(t *testing.T) {
	storage := promqltest.LoadedStorage(t, `load 1m
  gpuready_gpu_pod_info{node="n1",gpu="0",uuid="GPU-1",pod_name="job",pod="plugin-a"} 1x9 stale
  gpuready_gpu_pod_info{node="n1",gpu="0",uuid="GPU-1",pod_name="job",pod="plugin-b"} _x10 1x10
  gpuready_gpu_xids_total{node="n1",gpu="0",uuid="GPU-1",pod="plugin-a"} 0x8 3 stale
  gpuready_gpu_xids_total{node="n1",gpu="0",uuid="GPU-1",pod="plugin-b"} _x10 0x10
  gpuready_gpu_power_watts{node="n1",gpu="0",uuid="GPU-1",pod="plugin-a"} 500x9 stale
  gpuready_gpu_power_watts{node="n1",gpu="0",uuid="GPU-1",pod="plugin-b"} _x10 600x10
`)
	defer func() { _ = storage.Close() }()
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	at := time.Unix(0, 0).Add(12 * time.Minute)
	for title, atLeast := range map[string]float64{"New XIDs on the GPUs of each pod": 3, "Power of the GPUs of each pod": 600} {
		q, err := engine.NewInstantQuery(t.Context(), storage, promql.NewPrometheusQueryOpts(false, 0, nil), panelExpr(t, title), at)
		if err != nil {
			t.Fatal(err)
		}
		v, err := q.Exec(t.Context()).Vector()
		if err != nil {
			t.Fatalf("%s: %v", title, err)
		}
		if len(v) != 1 || v[0].F < atLeast || v[0].Metric.Get("pod_name") != "job" {
			t.Errorf("%s: %v", title, v)
		}
		q.Close()
	}
}
