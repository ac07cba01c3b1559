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
