// Package monitoring tests the files with which Prometheus and Grafana monitor gpuready:
// podmonitor.yaml, rules.yaml and dashboard.json.
package monitoring

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deviceplugin/mps"
	deviceplugin "github.com/gpuready/gpuready/deviceplugin/plugin"
	dra "github.com/gpuready/gpuready/dra/plugin"
	"github.com/gpuready/gpuready/internal/nodestate"
	operator "github.com/gpuready/gpuready/operator/metrics"
	toolkit "github.com/gpuready/gpuready/toolkit/daemon"
)

// metricLabels are the labels of every metric of the programs, by name.
type metricLabels map[string][]string

func allMetrics(t *testing.T) metricLabels {
	s := metricLabels{"up": nil}
	for _, c := range components(t) {
		for _, m := range c.metrics {
			s[m.name] = m.labels
		}
	}
	return s
}

// labels returns the labels of a metric, or of the histogram that it is a part of.
func (s metricLabels) labels(name string) (labels []string, known bool) {
	if labels, known = s[name]; known {
		return labels, true
	}
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		if base, is := strings.CutSuffix(name, part); is && !strings.HasSuffix(base, "_total") {
			if labels, known = s[base]; known {
				return append(slices.Clone(labels), "le"), true
			}
		}
	}
	return nil, false
}

// target are the labels that a scrape adds (podmonitor.yaml).
var target = []string{"namespace", "pod", "container", "node", "job", "instance"}

var (
	quoted   = regexp.MustCompile(`"[^"]*"`)
	selector = regexp.MustCompile(`([a-z_]+)(\{[^}]*\})?`)
	matcher  = regexp.MustCompile(`([a-z_]+) *(?:=~|!~|!=|=)`)
	grouping = regexp.MustCompile(`\b(by|on|group_left|ignoring|without) *\(([^)]*)\)`)
	words    = []string{"sum", "avg", "max", "count", "rate", "increase", "histogram_quantile", "vector", "time", "min", "or", "unless", "and", "by", "on", "group_left", "ignoring", "label_replace", "label_values"}
)

// findUnknown returns the unknown names in an expression.
func (s metricLabels) findUnknown(expr string) []string {
	var wrong []string
	for _, pair := range []string{"()", "{}", "[]"} {
		if strings.Count(expr, pair[:1]) != strings.Count(expr, pair[1:]) {
			wrong = append(wrong, "unbalanced "+pair)
		}
	}
	plain := quoted.ReplaceAllString(expr, `""`)
	plain = regexp.MustCompile(`\[[^]]*\]|\boffset [$\w]+`).ReplaceAllString(plain, "")
	labels, metrics := slices.Clone(target), 0
	bare := grouping.ReplaceAllString(plain, "")
	for _, m := range selector.FindAllStringSubmatch(bare, -1) {
		if slices.Contains(words, m[1]) {
			continue
		}
		own, known := s.labels(m[1])
		if !known {
			wrong = append(wrong, "no metric "+m[1])
			continue
		}
		metrics++
		labels = append(labels, own...)
		for _, l := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(own, l[1]) && !slices.Contains(target, l[1]) {
				wrong = append(wrong, m[1]+" has no label "+l[1])
			}
		}
	}
	if metrics == 0 {
		wrong = append(wrong, "no metric at all")
	}
	for _, m := range grouping.FindAllStringSubmatch(plain, -1) {
		for l := range strings.SplitSeq(m[2], ",") {
			if l = strings.TrimSpace(l); l != "" && !slices.Contains(labels, l) {
				wrong = append(wrong, "no label "+l)
			}
		}
	}
	return wrong
}

func TestUnknownMetricsAreFound(t *testing.T) {
	s := allMetrics(t)
	for expr, want := range map[string]string{
		`gpuready_deviceplugin_device_health == 0`:                            "no metric gpuready_deviceplugin_device_health",
		`gpuready_deviceplugin_devices{status="Healthy"}`:                     "gpuready_deviceplugin_devices has no label status",
		`sum by (uuid) (gpuready_deviceplugin_devices)`:                       "no label uuid",
		`sum (gpuready_deviceplugin_devices`:                                  "unbalanced ()",
		`rate(gpuready_deviceplugin_xids_total_sum[5m])`:                      "no metric gpuready_deviceplugin_xids_total_sum",
		`increase(gpuready_deviceplugin_allocations_total{codes!="OK"}[10m])`: "gpuready_deviceplugin_allocations_total has no label codes",
	} {
		require.Contains(t, s.findUnknown(expr), want, expr)
	}
	require.Empty(t, s.findUnknown(`histogram_quantile(0.9, sum by (le, node) (rate(gpuready_deviceplugin_allocation_duration_seconds_bucket{resource="x"}[5m])))`))
}

type rules struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Metadata   metadata `json:"metadata"`
	Spec       struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				For         string            `json:"for"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	} `json:"spec"`
}

func readRules(t *testing.T) rules {
	t.Helper()
	data, err := os.ReadFile("rules.yaml")
	require.NoError(t, err)
	var r rules
	require.NoError(t, yaml.UnmarshalStrict(data, &r))
	require.Equal(t, "monitoring.coreos.com/v1 PrometheusRule", r.APIVersion+" "+r.Kind)
	return r
}

type metadata struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
}

// missingAtStart returns the counters in an increase of an expression that a program
// does not export from its start: there is no increase from no series to 1.
func missingAtStart(t *testing.T, expr string) (missing []string) {
	reg := prometheus.NewRegistry()
	m := deviceplugin.NewMetrics()
	m.Register(reg)
	m.SetState(nodestate.Ready, "", map[string]bool{"nvidia.com/gpu": true})
	toolkit.NewMetrics(reg)
	operator.New(reg)
	mps.NewMetrics(reg).InitResource("nvidia.com/gpu")
	dra.NewMetrics().Register(reg)
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, counter := range regexp.MustCompile(`increase\(([a-z_]+)(?:\{([^}]*)\})?`).FindAllStringSubmatch(expr, -1) {
		if strings.Contains(expr, " unless "+counter[1]+" offset ") {
			continue // those that have only just come count
		}
		there := false
		for _, f := range families {
			for _, series := range f.GetMetric() {
				labels := map[string]string{}
				for _, l := range series.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				there = there || f.GetName() == counter[1] && matches(labels, counter[2])
			}
		}
		if !there {
			missing = append(missing, counter[0])
		}
	}
	return missing
}

// matches reports whether matchers select a series.
func matches(labels map[string]string, matchers string) bool {
	for _, m := range regexp.MustCompile(`([a-z_]+)(=|!=)"([^"]*)"`).FindAllStringSubmatch(matchers, -1) {
		if (labels[m[1]] == m[3]) != (m[2] == "=") {
			return false
		}
	}
	return true
}

func TestCountersStartAtZero(t *testing.T) {
	require.Empty(t, missingAtStart(t, `increase(gpuready_deviceplugin_nvml_errors_total{code="HUNG"}[10m]) > 0`))
	require.NotEmpty(t, missingAtStart(t, `increase(gpuready_deviceplugin_nvml_errors_total{code="GPU_IS_LOST"}[10m]) > 0`))
	require.NotEmpty(t, missingAtStart(t, `increase(gpuready_deviceplugin_xids_total[10m]) > 10`))
}

var inText = regexp.MustCompile(`\{\{ \$labels\.([a-z]+) \}\}`)

func TestAlertsUseKnownMetricsAndHaveARemedy(t *testing.T) {
	r := readRules(t)
	s, seen := allMetrics(t), map[string]bool{}
	for _, g := range r.Spec.Groups {
		for _, a := range g.Rules {
			require.False(t, seen[a.Alert], "%s: twice", a.Alert)
			seen[a.Alert] = true
			require.Empty(t, s.findUnknown(a.Expr), a.Alert)
			require.Empty(t, missingAtStart(t, a.Expr), a.Alert)
			require.Contains(t, []string{"info", "warning", "critical"}, a.Labels["severity"], a.Alert)
			require.NotEmpty(t, a.Annotations["summary"], a.Alert)
			require.NotEmpty(t, a.Annotations["description"], a.Alert)
			name := regexp.MustCompile(`(gpuready_[a-z_]+|\bup\b)`).FindString(a.Expr)
			own, _ := s.labels(name)
			for _, m := range inText.FindAllStringSubmatch(a.Annotations["summary"]+a.Annotations["description"], -1) {
				require.Contains(t, append(slices.Clone(own), target...), m[1], a.Alert)
			}
		}
	}
	require.NotEmpty(t, seen)
}

func TestPanelsUseKnownMetrics(t *testing.T) {
	data, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, LegendFormat string }

			FieldConfig     struct{ Defaults struct{ Unit string } }
			Transformations []struct {
				Options struct{ RenameByName map[string]string }
			}
		}
		Templating struct {
			List []struct {
				Type  string
				Query any
			}
		}
	}
	require.NoError(t, json.Unmarshal(data, &d))
	s, taken, ids := allMetrics(t), map[[2]int]string{}, map[int]bool{}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Less(t, at[0], 24, p.Title)
				require.Empty(t, taken[at], "%s lies on it", p.Title)
				taken[at] = p.Title
			}
		}
		require.Equal(t, p.Type == "row", len(p.Targets) == 0, p.Title)
		require.Equal(t, p.Type == "row", p.FieldConfig.Defaults.Unit == "", "%s: the unit", p.Title)
		require.Equal(t, p.Type == "table", len(p.Transformations) == 1, p.Title)
		for _, target := range p.Targets {
			require.Empty(t, s.findUnknown(target.Expr), p.Title)
			for _, l := range regexp.MustCompile(`\{\{([a-z_]+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				require.Contains(t, s.resultLabels(target.Expr), l[1], "%s: %s", p.Title, target.LegendFormat)
			}
			for _, table := range p.Transformations {
				labels := slices.DeleteFunc(slices.Collect(maps.Keys(table.Options.RenameByName)), func(l string) bool { return l == "Value" })
				require.ElementsMatch(t, s.resultLabels(target.Expr), labels, "%s: the columns are the labels, and each has a name", p.Title)
			}
		}
	}
	queries := 0
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		queries++
		query, is := v.Query.(map[string]any)["query"].(string)
		require.True(t, is)
		m := regexp.MustCompile(`^label_values\(([a-z_]+), ([a-z]+)\)$`).FindStringSubmatch(query)
		require.NotNil(t, m, query)
		own, known := s.labels(m[1])
		require.True(t, known, query)
		require.Contains(t, append(own, target...), m[2], query)
	}
	require.Equal(t, 1, queries)
}

// resultLabels returns the labels of an expression's result: those it is aggregated by,
// or all labels of its metric.
func (s metricLabels) resultLabels(expr string) []string {
	if left, _, joins := strings.Cut(expr, " * on ("); joins && !strings.Contains(left, "by (") {
		return s.resultLabels(left) // with group_left, the labels are those of the left side
	}
	if m := regexp.MustCompile(`\bby *\(([^)]*)\)`).FindStringSubmatch(expr); m != nil {
		return strings.Split(strings.ReplaceAll(m[1], " ", ""), ",")
	}
	var all []string
	for _, m := range selector.FindAllStringSubmatch(expr, -1) {
		if own, known := s.labels(m[1]); known {
			all = append(append(all, own...), target...)
		}
	}
	return all
}

func TestPodMonitorSelectsThePodsOfTheManifests(t *testing.T) {
	data, err := os.ReadFile("podmonitor.yaml")
	require.NoError(t, err)
	var m struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Metadata   metadata `json:"metadata"`
		Spec       struct {
			JobLabel          string `json:"jobLabel"`
			NamespaceSelector struct {
				MatchNames []string `json:"matchNames"`
			} `json:"namespaceSelector"`
			Selector struct {
				MatchLabels      map[string]string `json:"matchLabels"`
				MatchExpressions []struct {
					Key      string   `json:"key"`
					Operator string   `json:"operator"`
					Values   []string `json:"values"`
				} `json:"matchExpressions"`
			} `json:"selector"`
			PodMetricsEndpoints []struct {
				Port        string `json:"port"`
				Path        string `json:"path"`
				Interval    string `json:"interval"`
				Relabelings []struct {
					SourceLabels []string `json:"sourceLabels"`
					TargetLabel  string   `json:"targetLabel"`
				} `json:"relabelings"`
			} `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	require.NoError(t, yaml.UnmarshalStrict(data, &m))
	var all []string
	for _, file := range []string{"gpuready.yaml", "mps.yaml", "operator.yaml"} {
		data, err := os.ReadFile("../static/" + file)
		require.NoError(t, err)
		all = append(all, string(data))
	}
	manifest := strings.Join(all, "---\n")
	for _, namespace := range append(m.Spec.NamespaceSelector.MatchNames, m.Metadata.Namespace) {
		require.Contains(t, manifest, "name: "+namespace+"\n")
	}
	apps := m.Spec.Selector.MatchExpressions[0].Values
	require.Equal(t, map[string]string{"app.kubernetes.io/part-of": "gpuready"}, m.Spec.Selector.MatchLabels)
	for _, app := range apps {
		require.Contains(t, manifest, "app: "+app+"\n")
	}
	port := "name: " + m.Spec.PodMetricsEndpoints[0].Port + ", containerPort: "
	require.Contains(t, manifest, port+"9402 }")
	// Every program with metrics is scraped, and has an alert for when it does not respond.
	rules, err := os.ReadFile("rules.yaml")
	require.NoError(t, err)
	for document := range strings.SplitSeq(manifest, "---\n") {
		if app := regexp.MustCompile(`app: (\S+)`).FindStringSubmatch(document); app != nil && strings.Contains(document, port) {
			require.Contains(t, apps, app[1])
			require.Regexp(t, `up\{job=~"[^"]*\b`+app[1]+`\b`, string(rules))
		}
	}
}
