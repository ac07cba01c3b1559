package monitoring

import (
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/compare"
	"github.com/gpuready/gpuready/deviceplugin/mps"
	deviceplugin "github.com/gpuready/gpuready/deviceplugin/plugin"
	"github.com/gpuready/gpuready/deviceplugin/telemetry"
	dra "github.com/gpuready/gpuready/dra/plugin"
	"github.com/gpuready/gpuready/internal/metricsserver"
	operator "github.com/gpuready/gpuready/operator/metrics"
	"github.com/gpuready/gpuready/test/lab/golden"
	toolkit "github.com/gpuready/gpuready/toolkit/daemon"
	validator "github.com/gpuready/gpuready/validator/daemon"
	"github.com/gpuready/gpuready/validator/kube"
	"github.com/gpuready/gpuready/validator/nodestatus"
	"github.com/gpuready/gpuready/validator/workload"
)

// metric describes a metric as the page lists it.
type metric struct {
	name, help string
	labels     []string
}

// component is a program, or a part of one, with its metrics.
type component struct {
	title   string
	metrics []metric
}

// Register adds the metrics of a collector.
func (c *component) Register(m prometheus.Collector) error { c.MustRegister(m); return nil }

// Unregister removes nothing.
func (c *component) Unregister(prometheus.Collector) bool { return false }

// descPattern matches a printed prometheus.Desc, which is the only way to its text and labels.
var descPattern = regexp.MustCompile(`fqName: ("[^"]+"), help: ("(?:[^"\\]|\\.)*"), .*variableLabels: \{([^}]*)\}`)

// MustRegister adds the metrics of collectors.
func (c *component) MustRegister(collectors ...prometheus.Collector) {
	for _, each := range collectors {
		descs := make(chan *prometheus.Desc)
		go func() { defer close(descs); each.Describe(descs) }()
		for d := range descs {
			text := descPattern.FindStringSubmatch(d.String())
			name, _ := strconv.Unquote(text[1])
			help, _ := strconv.Unquote(text[2])
			switch each.(type) {
			case *prometheus.HistogramVec, prometheus.Histogram:
				help += " A histogram."
			}
			c.metrics = append(c.metrics, metric{name, help, slices.DeleteFunc(strings.Split(text[3], ","), func(l string) bool { return l == "" })})
		}
	}
}

// components returns all programs that serve metrics.
func components(t *testing.T) []component {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	var all []component
	for _, c := range []struct {
		title    string
		register func(*component)
	}{
		{"Device plugin", func(c *component) { deviceplugin.NewMetrics().Register(c) }},
		{"GPUs", func(c *component) { c.MustRegister(telemetry.NewCollector(telemetry.Config{})) }},
		{"Toolkit", func(c *component) { toolkit.NewMetrics(c) }},
		{"Validator", func(c *component) {
			validator.NewMetrics(c)
			nodestatus.NewMetrics(c)
			kube.NewNodeReader(kube.NodeReaderConfig{}, c)
			workload.New(workload.Config{}, log, c)
			workload.NewDriverPod(workload.Config{}, log, c)
		}},
		{"Operator", func(c *component) { operator.New(c) }},
		{"MPS daemon", func(c *component) { mps.NewMetrics(c) }},
		{"DRA driver", func(c *component) { dra.NewMetrics().Register(c) }},
		{"Shadow mode", func(c *component) { compare.New(compare.Config{}, c) }},
	} {
		made := component{title: c.title}
		c.register(&made)
		all = append(all, made)
	}
	process := component{title: "All programs"}
	own, err := metricsserver.NewRegistry().Gather()
	require.NoError(t, err)
	for _, f := range own {
		var labels []string
		for _, l := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, l.GetName())
		}
		process.metrics = append(process.metrics, metric{f.GetName(), f.GetHelp(), labels})
	}
	return append(all, process)
}

const page = "../../docs/monitoring.md"

// The page lists the metrics with the texts that the programs serve.
func TestMetricsArePrintedOnThePage(t *testing.T) {
	var b strings.Builder
	for _, c := range components(t) {
		slices.SortFunc(c.metrics, func(a, b metric) int { return strings.Compare(a.name, b.name) })
		same := func(a, b metric) bool { return a.name == b.name } // a Desc for each value of a label
		var rows [][]string
		for _, m := range slices.CompactFunc(c.metrics, same) {
			if !strings.HasPrefix(m.name, "gpuready_") {
				continue // of every Go program
			}
			require.NotEmpty(t, m.help, m.name)
			var labels []string
			for _, l := range m.labels {
				labels = append(labels, golden.Code(l))
			}
			rows = append(rows, []string{golden.Code(m.name), strings.Join(labels, ", "), m.help})
		}
		b.WriteString("\n### " + c.title + "\n\n" + golden.Table([]string{"metric", "labels", "meaning"}, rows))
	}
	golden.RequireSection(t, page,
		"<!-- metrics: made by go test ./deployments/monitoring -update -->\n", "\n<!-- end of metrics -->", b.String())
}

// inSummary matches a value that Prometheus puts into a summary.
var inSummary = regexp.MustCompile(`\{\{ \$(?:labels\.)?([a-z]+) \}\}`)

// The page lists the alerts with their summaries, in which a label stands for its value.
func TestAlertsArePrintedOnThePage(t *testing.T) {
	var rows [][]string
	for _, g := range readRules(t).Spec.Groups {
		for _, a := range g.Rules {
			rows = append(rows, []string{golden.Code(a.Alert), a.Labels["severity"], inSummary.ReplaceAllString(a.Annotations["summary"], "`$1`")})
		}
	}
	golden.RequireSection(t, page,
		"<!-- alerts: made by go test ./deployments/monitoring -update -->\n", "\n<!-- end of alerts -->",
		"\n"+golden.Table([]string{"alert", "severity", "summary"}, rows))
}
