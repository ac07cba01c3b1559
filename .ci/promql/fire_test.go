package promql

import (
	"os"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/promqltest"
	"sigs.k8s.io/yaml"
)

// alert is an alerting rule.
type alert struct {
	Alert string `json:"alert"`
	Expr  string `json:"expr"`
	For   string `json:"for"`
}

// alertsOf returns the alerts of a group.
func alertsOf(t *testing.T, group string) map[string]alert {
	data, err := os.ReadFile(monitoring + "/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Spec struct {
			Groups []struct {
				Name  string  `json:"name"`
				Rules []alert `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(data, &rules); err != nil {
		t.Fatal(err)
	}
	all := map[string]alert{}
	for _, g := range rules.Spec.Groups {
		if g.Name == group {
			for _, a := range g.Rules {
				all[a.Alert] = a
			}
		}
	}
	return all
}

// now is the minute at which alerts are evaluated, in the time of the series: they begin at
// the epoch with a value a minute.
const now = 120

// fires reports whether an alert is active at the end of a series with one value a
// minute: its expression has held at each minute of its "for".
func fires(t *testing.T, a alert, series string) bool {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 1m\n"+series)
	defer func() { _ = storage.Close() }()
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	hold, err := time.ParseDuration(a.For)
	if err != nil {
		t.Fatal(a.Alert, err)
	}
	end := time.Unix(0, 0).Add(now * time.Minute)
	for at := end.Add(-hold); !at.After(end); at = at.Add(time.Minute) {
		q, err := engine.NewInstantQuery(t.Context(), storage, promql.NewPrometheusQueryOpts(false, 0, nil), a.Expr, at)
		if err != nil {
			t.Fatal(a.Alert, err)
		}
		r := q.Exec(t.Context())
		v, err := r.Vector()
		if err != nil {
			t.Fatal(a.Alert, err)
		}
		q.Close()
		if len(v) == 0 {
			return false
		}
	}
	return true
}

// alertCase has series with which an alert fires, and others with which it does not.
type alertCase struct{ wrong, calm string }

// requireFires checks that each alert of a group fires in its case, and only then.
func requireFires(t *testing.T, group string, cases map[string]alertCase) {
	t.Helper()
	alerts := alertsOf(t, group)
	for name := range alerts {
		if _, is := cases[name]; !is {
			t.Errorf("%s: nothing shows that it fires", name)
		}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			a, is := alerts[name]
			if !is {
				t.Fatal("there is no such alert")
			}
			if !fires(t, a, c.wrong) {
				t.Errorf("it does not fire: %s", a.Expr)
			}
			if fires(t, a, c.calm) {
				t.Errorf("it fires without a cause: %s", a.Expr)
			}
		})
	}
}

// Each alert of the operator fires when its condition occurs, and only then.
func TestAlertsOfTheOperatorFire(t *testing.T) {
	requireFires(t, "gpuready-operator", map[string]alertCase{
		"GPUPolicyNotReady": {
			"  gpuready_operator_policy_condition{type=\"Ready\"} 0x120\n",
			"  gpuready_operator_policy_condition{type=\"Ready\"} 0x100 1x20\n  gpuready_operator_policy_condition{type=\"Degraded\"} 0x120\n",
		},
		"GPUPolicyDegraded": {
			"  gpuready_operator_policy_condition{type=\"Degraded\"} 1x120\n",
			"  gpuready_operator_policy_condition{type=\"Ready\"} 1x120\n  gpuready_operator_policy_condition{type=\"Degraded\"} 1x110 0x10\n",
		},
		"GPUNodeStuck": {
			"  gpuready_operator_nodes_since_timestamp_seconds{pool=\"p\",state=\"driver\",status=\"waiting\"} 3600x120\n",
			"  gpuready_operator_nodes_since_timestamp_seconds{pool=\"p\",state=\"driver\",status=\"waiting\"} 6600x120\n",
		},
		"GPUDriverUpgradeFailed": {
			"  gpuready_operator_upgrade_nodes{state=\"upgrade-failed\"} 0x60 1x60\n",
			"  gpuready_operator_upgrade_nodes{state=\"upgrade-done\"} 3x120\n",
		},
		"GPUDriverImageMissing": {
			"  gpuready_operator_driver_problem_pools{reason=\"PrecompiledImageMissing\"} 1x120\n",
			"  gpuready_operator_driver_problem_pools{reason=\"RegistryPending\"} 1x120\n",
		},
		"GPURegistryUnknown": {
			"  gpuready_operator_driver_problem_pools{reason=\"RegistryUnknown\"} 1x120\n",
			"  gpuready_operator_driver_problem_pools{reason=\"PrecompiledImageMissing\"} 1x120\n",
		},
		"GPUOperatorNotReconciling": {
			"  gpuready_operator_reconciles_total{about=\"policy\",outcome=\"failed\"} 0+2x120\n  gpuready_operator_reconciles_total{about=\"policy\",outcome=\"ok\"} 7x120\n",
			"  gpuready_operator_reconciles_total{about=\"policy\",outcome=\"failed\"} 0+2x120\n  gpuready_operator_reconciles_total{about=\"policy\",outcome=\"ok\"} 0+1x120\n",
		},
		"GPUOperatorAPIErrors": {
			"  gpuready_operator_api_writes_total{verb=\"apply\",resource=\"daemonsets\",outcome=\"refused\"} 0+1x120\n",
			"  gpuready_operator_api_writes_total{verb=\"evict\",resource=\"pods\",outcome=\"refused\"} 0+1x120\n  gpuready_operator_api_writes_total{verb=\"patch\",resource=\"nodes\",outcome=\"conflict\"} 0+1x120\n  gpuready_operator_api_writes_total{verb=\"patch\",resource=\"nodes\",outcome=\"ok\"} 0+1x120\n",
		},
		"GPUOperatorDown": {
			"  up{job=\"gpuready-operator\",pod=\"a\"} 1x60 0x60\n",
			"  up{job=\"gpuready-operator\",pod=\"a\"} 1x120\n  up{job=\"other\"} 0x120\n",
		},
	})
}

// The same of the DRA driver. A node that the device plugin serves has no device in its slices.
func TestAlertsOfTheDRADriverFire(t *testing.T) {
	requireFires(t, "gpuready-dra", map[string]alertCase{
		"GPUDeviceTainted": {
			"  gpuready_dra_devices{tainted=\"true\"} 0x100 1x20\n  gpuready_dra_devices{tainted=\"false\"} 8x100 7x20\n",
			"  gpuready_dra_devices{tainted=\"true\"} 0x120\n  gpuready_dra_devices{tainted=\"false\"} 0x120\n",
		},
		"GPUClaimsNotPrepared": {
			"  gpuready_dra_claims_total{operation=\"prepare\",outcome=\"error\"} 0+1x120\n",
			"  gpuready_dra_claims_total{operation=\"prepare\",outcome=\"error\"} 0x110 1x10\n  gpuready_dra_claims_total{operation=\"prepare\",outcome=\"ok\"} 0+5x120\n",
		},
		"GPUSlicesNotPublished": {
			"  gpuready_dra_background_errors_total 0+1x120\n",
			"  gpuready_dra_background_errors_total 0x110 2x10\n",
		},
	})
}
