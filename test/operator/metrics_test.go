package operator

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// absent lists metrics that alerts and the dashboard use but a healthy cluster does not
// expose, each with the reason.
var absent = map[string]string{
	"gpuready_deviceplugin_config_ignored_key":               "with --unknown-keys=warn, of each key",
	"gpuready_deviceplugin_devices_left_out":                 "of GPUs that are not advertised, by reason",
	"gpuready_deviceplugin_preferred_allocation_score_ratio": "once a pod has asked for two GPUs or more",
	"gpuready_deviceplugin_xids_total":                       "with the first XID; its alert counts those that have only just come",
	"gpuready_dra_background_errors_total":                   "there is no DRA driver here: see TestDRADriver",
	"gpuready_dra_claims_total":                              "there is no DRA driver here: see TestDRADriver",
	"gpuready_dra_devices":                                   "there is no DRA driver here: see TestDRADriver",
	"gpuready_gpu_last_xid":                                  "with the first XID",
	"gpuready_gpu_mig_memory_size_bytes":                     "no GPU is in MIG mode here",
	"gpuready_gpu_mig_memory_used_bytes":                     "no GPU is in MIG mode here",
	"gpuready_gpu_pod_info":                                  "of GPUs that pods hold",
	"gpuready_layer_not_ready_reason":                        "of a layer that is not proven",
	"gpuready_mps_failures_total":                            "nothing is shared by MPS here",
	"gpuready_mps_ready":                                     "nothing is shared by MPS here",
	"gpuready_mps_state_unwritten":                           "nothing is shared by MPS here",
	"gpuready_operator_driver_problem_pools":                 "with the first problem: see NoToolkitImage, PrecompiledMissing",
	"gpuready_operator_nodes_since_timestamp_seconds":        "of nodes that are not ready: see AFailureStopsIt",
	"gpuready_operator_serve_nodes":                          "there is no DRA driver here: see TestDRADriver",
	"gpuready_toolkit_runtime_problem":                       "of a runtime that is not configured as it should be",
}

// otherwise lists metrics that it exposes, but with other label values than those selected.
var otherwise = map[string]string{
	"gpuready_deviceplugin_devices":   "unhealthy ones",
	"gpuready_deviceplugin_phase":     "the phase and reason that are so",
	"gpuready_operator_upgrade_nodes": "the states that nodes are in: see AFailureStopsIt",
}

// scraped are the labels that Prometheus adds when it scrapes (podmonitor.yaml).
var scraped = []string{"namespace", "pod", "container", "node", "job", "instance"}

// series maps each exposed metric to the labels of its series.
type series map[string][]map[string]string

var (
	line     = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? [^ ]+$`)
	pair     = regexp.MustCompile(`([a-z_]+)="((?:[^"\\]|\\.)*)"`)
	selected = regexp.MustCompile(`\b(gpuready_[a-z_]+)(?:\{([^}]*)\})?`)
	matched  = regexp.MustCompile(`([a-z_]+) *(=~|!~|!=|=) *"([^"]*)"`)
	grouped  = regexp.MustCompile(`\bby *\(([^)]*)\)`)
)

// scrape reads the metrics that pods expose to Prometheus, on their port "metrics".
func (s *suite) scrape(t *testing.T, selector string) series {
	t.Helper()
	all := series{}
	for _, p := range s.World.Pods(namespace, selector) {
		for _, c := range p.Spec.Containers {
			for _, port := range c.Ports {
				if port.Name != "metrics" || p.DeletionTimestamp != nil {
					continue
				}
				path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s:%d/proxy/metrics", p.Namespace, p.Name, port.ContainerPort)
				text, err := s.World.Client.CoreV1().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
				require.NoError(t, err, p.Name)
				for _, m := range line.FindAllStringSubmatch(string(text), -1) {
					labels := map[string]string{}
					for _, l := range pair.FindAllStringSubmatch(m[2], -1) {
						labels[l[1]] = l[2]
					}
					all[m[1]] = append(all[m[1]], labels)
				}
			}
		}
	}
	require.NotEmpty(t, all, "no metrics of %s", selector)
	return all
}

// lacks returns why no series matches a selector, or "" if one does.
func (s series) lacks(name, matchers string) string {
	if len(s[name]) == 0 {
		return "there is no " + name
	}
	for _, labels := range s[name] {
		if matches(labels, matchers) {
			return ""
		}
	}
	return fmt.Sprintf("no %s is {%s}; one is %v", name, matchers, s[name][0])
}

func matches(labels map[string]string, matchers string) bool {
	for _, m := range matched.FindAllStringSubmatch(matchers, -1) {
		value, has := labels[m[1]]
		if slices.Contains(scraped, m[1]) {
			continue
		}
		as := m[3]
		if !strings.HasSuffix(m[2], "~") {
			as = regexp.QuoteMeta(as)
		}
		if !has || regexp.MustCompile("^(?:"+as+")$").MatchString(value) != !strings.HasPrefix(m[2], "!") {
			return false
		}
	}
	return true
}

// ungrouped returns the labels that an expression groups by and none of its metrics has.
func (s series) ungrouped(expr string) (missing []string) {
	known := map[string]bool{"le": true}
	for _, m := range selected.FindAllStringSubmatch(expr, -1) {
		for _, labels := range s[m[1]] {
			for key := range labels {
				known[key] = true
			}
		}
	}
	for _, m := range grouped.FindAllStringSubmatch(expr, -1) {
		for key := range strings.SplitSeq(m[1], ",") {
			if key = strings.TrimSpace(key); !known[key] && !slices.Contains(scraped, key) {
				missing = append(missing, key)
			}
		}
	}
	return missing
}

// expressions returns the PromQL expressions of the alerts and the dashboard.
func expressions(t *testing.T) (all []string) {
	t.Helper()
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		text, err := os.ReadFile("../../deployments/monitoring/" + file)
		require.NoError(t, err)
		var document any
		require.NoError(t, yaml.Unmarshal(text, &document))
		found := exprs(document)
		require.NotEmpty(t, found, file)
		all = append(all, found...)
	}
	return all
}

func exprs(v any) (all []string) {
	switch v := v.(type) {
	case map[string]any:
		if expr, is := v["expr"].(string); is {
			all = append(all, expr)
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			all = append(all, exprs(v[key])...)
		}
	case []any:
		for _, item := range v {
			all = append(all, exprs(item)...)
		}
	}
	return all
}

// alertsNameWhatIsShown checks that the running programs expose each metric of the alerts and
// the dashboard, with the labels that are selected.
func (s *suite) alertsNameWhatIsShown(t *testing.T) {
	have := s.scrape(t, "app.kubernetes.io/part-of=gpuready")
	missing, others := maps.Clone(absent), maps.Clone(otherwise)
	for _, expr := range expressions(t) {
		gone := false
		for _, m := range selected.FindAllStringSubmatch(expr, -1) {
			lacks := have.lacks(m[1], m[2])
			switch whole := base(m[1]); {
			case lacks == "":
			case len(have[m[1]]) == 0:
				gone = true
				assert.Containsf(t, absent, whole, "%s\nin %s", lacks, expr)
				delete(missing, whole)
			default:
				assert.Containsf(t, otherwise, whole, "%s\nin %s", lacks, expr)
				assert.Emptyf(t, have.unlabelled(m[1], m[2]), "%s\nin %s", lacks, expr)
				delete(others, whole)
			}
		}
		if !gone {
			assert.Emptyf(t, have.ungrouped(expr), "labels that nothing has, in %s", expr)
		}
	}
	assert.Empty(t, missing, "these are shown: they need no reason")
	assert.Empty(t, others, "these are shown as they are asked for: they need no reason")
}

// base returns the metric to which a part of a histogram belongs.
func base(name string) string {
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		if whole, is := strings.CutSuffix(name, part); is {
			return whole
		}
	}
	return name
}

// unlabelled returns the labels that a selector names and the metric lacks.
func (s series) unlabelled(name, matchers string) (keys []string) {
	for _, m := range matched.FindAllStringSubmatch(matchers, -1) {
		if _, has := s[name][0][m[1]]; !has && !slices.Contains(scraped, m[1]) {
			keys = append(keys, m[1])
		}
	}
	return keys
}

// showsFailure waits until the operator exposes the series for which an alert waits.
func (s *suite) showsFailure(t *testing.T, name, matchers string) {
	t.Helper()
	s.until(t, fmt.Sprintf("Prometheus is shown %s{%s}", name, matchers), func() error {
		if lacks := s.scrape(t, "app=gpuready-operator").lacks(name, matchers); lacks != "" {
			return fmt.Errorf("%s", lacks)
		}
		return nil
	})
}
