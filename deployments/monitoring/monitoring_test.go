package monitoring

import (
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/gpuready/gpuready/deviceplugin/meter"
	"github.com/gpuready/gpuready/internal/metrics"
	toolkit "github.com/gpuready/gpuready/toolkit/daemon"
	validator "github.com/gpuready/gpuready/validator/daemon"
	"github.com/gpuready/gpuready/validator/voice"
)

var update = flag.Bool("update", false, "write the dashboard anew")

func TestTheDashboardIsRendered(t *testing.T) {
	want, err := Dashboard()
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.WriteFile("dashboard.json", want, 0o644))
	}
	have, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	require.Equal(t, string(want), string(have), "run make generate")
}

// shown are the labels of every metric that the programs can show, by name.
type shown map[string][]string

func (s shown) Register(c prometheus.Collector) error { s.MustRegister(c); return nil }
func (s shown) Unregister(prometheus.Collector) bool  { return false }

// described is how a prometheus.Desc prints itself, the one way to its labels.
var described = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

func (s shown) MustRegister(collectors ...prometheus.Collector) {
	for _, c := range collectors {
		descs := make(chan *prometheus.Desc)
		go func() { defer close(descs); c.Describe(descs) }()
		for d := range descs {
			m := described.FindStringSubmatch(d.String())
			s[m[1]] = slices.DeleteFunc(strings.Split(m[2], ","), func(l string) bool { return l == "" })
		}
	}
}

func allMetrics(t *testing.T) shown {
	s := shown{"up": nil}
	meter.New().Register(s)
	toolkit.NewMetrics(s)
	validator.NewMetrics(s)
	voice.NewMetrics(s)
	own, err := metrics.NewRegistry().Gather()
	require.NoError(t, err)
	for _, f := range own {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		s[f.GetName()] = labels
	}
	return s
}

// labels are those of a metric, or of the histogram that it is a part of.
func (s shown) labels(name string) (labels []string, known bool) {
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
	words    = []string{"sum", "count", "rate", "increase", "histogram_quantile", "vector", "or", "unless", "and", "by", "on", "group_left", "label_values"}
)

// wrong says what an expression names that is not shown.
func (s shown) wrong(expr string) []string {
	var wrong []string
	for _, pair := range []string{"()", "{}", "[]"} {
		if strings.Count(expr, pair[:1]) != strings.Count(expr, pair[1:]) {
			wrong = append(wrong, "unbalanced "+pair)
		}
	}
	plain := quoted.ReplaceAllString(expr, `""`)
	plain = regexp.MustCompile(`\[[^]]*\]`).ReplaceAllString(plain, "")
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

func TestTheCheckFindsWhatIsNotThere(t *testing.T) {
	s := allMetrics(t)
	for expr, want := range map[string]string{
		`gpuready_deviceplugin_device_health == 0`:                            "no metric gpuready_deviceplugin_device_health",
		`gpuready_deviceplugin_devices{status="Healthy"}`:                     "gpuready_deviceplugin_devices has no label status",
		`sum by (uuid) (gpuready_deviceplugin_devices)`:                       "no label uuid",
		`sum (gpuready_deviceplugin_devices`:                                  "unbalanced ()",
		`rate(gpuready_deviceplugin_xids_total_sum[5m])`:                      "no metric gpuready_deviceplugin_xids_total_sum",
		`increase(gpuready_deviceplugin_allocations_total{codes!="OK"}[10m])`: "gpuready_deviceplugin_allocations_total has no label codes",
	} {
		require.Contains(t, s.wrong(expr), want, expr)
	}
	require.Empty(t, s.wrong(`histogram_quantile(0.9, sum by (le, node) (rate(gpuready_deviceplugin_allocation_duration_seconds_bucket{resource="x"}[5m])))`))
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

type metadata struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
}

var inText = regexp.MustCompile(`\{\{ \$labels\.([a-z]+) \}\}`)

func TestAlertsNameWhatIsShownAndWhatToDo(t *testing.T) {
	data, err := os.ReadFile("rules.yaml")
	require.NoError(t, err)
	var r rules
	require.NoError(t, yaml.UnmarshalStrict(data, &r))
	require.Equal(t, "monitoring.coreos.com/v1 PrometheusRule", r.APIVersion+" "+r.Kind)
	s, seen := allMetrics(t), map[string]bool{}
	docs, err := os.ReadFile("../../docs/monitoring.md")
	require.NoError(t, err)
	for _, g := range r.Spec.Groups {
		for _, a := range g.Rules {
			require.False(t, seen[a.Alert], "%s: twice", a.Alert)
			seen[a.Alert] = true
			require.Empty(t, s.wrong(a.Expr), a.Alert)
			require.Contains(t, []string{"info", "warning", "critical"}, a.Labels["severity"], a.Alert)
			require.NotEmpty(t, a.Annotations["summary"], a.Alert)
			require.NotEmpty(t, a.Annotations["description"], a.Alert)
			require.Contains(t, string(docs), "`"+a.Alert+"`", "docs/monitoring.md")
			name := regexp.MustCompile(`(gpuready_[a-z_]+|\bup\b)`).FindString(a.Expr)
			own, _ := s.labels(name)
			for _, m := range inText.FindAllStringSubmatch(a.Annotations["summary"]+a.Annotations["description"], -1) {
				require.Contains(t, append(slices.Clone(own), target...), m[1], a.Alert)
			}
		}
	}
	require.NotEmpty(t, seen)
}

func TestPanelsNameWhatIsShown(t *testing.T) {
	data, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	var d struct {
		Panels []struct {
			ID      int
			Title   string
			Type    string
			GridPos struct{ X, Y, W, H int }
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct{ Query any }
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
		for _, target := range p.Targets {
			require.Empty(t, s.wrong(target.Expr), p.Title)
		}
	}
}

// Every metric of the device plugin has a line in its documentation.
func TestEveryMetricIsDocumented(t *testing.T) {
	docs, err := os.ReadFile("../../docs/monitoring.md")
	require.NoError(t, err)
	for name, labels := range allMetrics(t) {
		if !strings.HasPrefix(name, "gpuready_") {
			continue
		}
		i := strings.Index(string(docs), "| `"+name+"`")
		require.GreaterOrEqual(t, i, 0, name)
		line, _, _ := strings.Cut(string(docs)[i:], "\n")
		for _, l := range labels {
			require.Contains(t, line, "`"+l+"`", name)
		}
	}
}

func TestThePodMonitorFindsThePodsOfTheManifests(t *testing.T) {
	data, err := os.ReadFile("podmonitor.yaml")
	require.NoError(t, err)
	var m struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Metadata   metadata `json:"metadata"`
		Spec       struct {
			JobLabel string `json:"jobLabel"`
			Selector struct {
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
	manifest, err := os.ReadFile("../static/gpuready.yaml")
	require.NoError(t, err)
	require.Contains(t, string(manifest), "name: "+m.Metadata.Namespace+"\n")
	for _, app := range m.Spec.Selector.MatchExpressions[0].Values {
		require.Contains(t, string(manifest), "app: "+app+"\n")
	}
	require.Contains(t, string(manifest), "{ name: "+m.Spec.PodMetricsEndpoints[0].Port+", containerPort: 9402 }")
}
