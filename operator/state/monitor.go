package state

import (
	"maps"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

// ServiceMonitor is the prometheus-operator's kind that has Prometheus scrape a Service.
var ServiceMonitor = schema.GroupVersionKind{Group: "monitoring.coreos.com", Version: "v1", Kind: "ServiceMonitor"}

// scrapePort is the name of the port of the exporter's Service.
const scrapePort = "gpu-metrics"

// addServiceMonitor adds the exporter's ServiceMonitor, if the policy wants one.
func (r *renderer) addServiceMonitor() error {
	spec := r.spec.DCGMExporter.ServiceMonitor
	if spec == nil || spec.Enabled == nil || !*spec.Enabled {
		return nil
	}
	if !r.in.Cluster.ServiceMonitors {
		r.reportUnserved("dcgmExporter.serviceMonitor", "the cluster has no ServiceMonitors: install the prometheus-operator, or set dcgmExporter.serviceMonitor.enabled to false")
		return nil
	}
	// The converter keeps integers as such, which unstructured objects need.
	endpoint, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&struct {
		Port          string             `json:"port"`
		Path          string             `json:"path"`
		Interval      string             `json:"interval,omitempty"`
		ScrapeTimeout string             `json:"scrapeTimeout,omitempty"`
		HonorLabels   *bool              `json:"honorLabels,omitempty"`
		Relabelings   []v1.RelabelConfig `json:"relabelings,omitempty"`
	}{scrapePort, "/metrics", spec.Interval, spec.ScrapeTimeout, spec.HonorLabels, spec.Relabelings})
	if err != nil {
		return err
	}
	const name = "nvidia-dcgm-exporter"
	meta := r.objectMeta(name, name)
	labels := r.labels("dcgmExporter.serviceMonitor.additionalLabels", spec.AdditionalLabels)
	maps.Copy(labels, meta.Labels)
	monitor := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"jobLabel":          "app",
		"namespaceSelector": map[string]any{"matchNames": []any{meta.Namespace}},
		"selector":          map[string]any{"matchLabels": map[string]any{"app": name, label.PartOf: label.Product}},
		"endpoints":         []any{endpoint},
	}}}
	monitor.SetGroupVersionKind(ServiceMonitor)
	monitor.SetNamespace(meta.Namespace)
	monitor.SetName(meta.Name)
	monitor.SetLabels(labels)
	return r.add(progress.DCGMExporter, monitor)
}
