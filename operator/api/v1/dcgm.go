package v1

import corev1 "k8s.io/api/core/v1"

// DCGMSpec configures NVIDIA's DCGM, as a service on each node.
type DCGMSpec struct {
	OperandSpec `json:",inline"`

	// The host's port of DCGM. No longer used by NVIDIA's operator.
	HostPort int32 `json:"hostPort,omitempty"`
}

// DCGMExporterSpec configures NVIDIA's exporter of DCGM's metrics.
type DCGMExporterSpec struct {
	OperandSpec `json:",inline"`

	// Annotations of its pods; annotations does the same.
	PodAnnotations map[string]string `json:"podAnnotations,omitempty"`
	// Labels of its pods; labels does the same.
	PodLabels map[string]string `json:"podLabels,omitempty"`
	// The exported metrics.
	MetricsConfig *DCGMExporterMetricsConfig `json:"config,omitempty"`
	// Its ServiceMonitor for the prometheus-operator.
	ServiceMonitor *DCGMExporterServiceMonitorConfig `json:"serviceMonitor,omitempty"`
	// Its Service.
	ServiceSpec *DCGMExporterServiceConfig `json:"service,omitempty"`
	// Use the host's PID namespace.
	HostPID *bool `json:"hostPID,omitempty"`
	// Names of batch jobs as labels of metrics.
	HPCJobMapping *DCGMExporterHPCJobMappingConfig `json:"hpcJobMapping,omitempty"`
	// Labels of the pods that use a GPU as labels of metrics.
	EnablePodLabels *bool `json:"enablePodLabels,omitempty"`
	// UIDs of the pods that use a GPU as a label of metrics.
	EnablePodUID *bool `json:"enablePodUID,omitempty"`
	// Regular expressions of the pods' labels that become labels of metrics; all by default.
	PodLabelAllowlistRegex []string `json:"podLabelAllowlistRegex,omitempty"`

	DriverFieldsSpec `json:",inline"`
}

// DCGMExporterMetricsConfig selects the exported metrics.
type DCGMExporterMetricsConfig struct {
	// Name of a ConfigMap with dcgm-metrics.csv.
	Name string `json:"name,omitempty"`
}

// DCGMExporterHPCJobMappingConfig configures names of batch jobs as labels of metrics.
type DCGMExporterHPCJobMappingConfig struct {
	// Whether names of batch jobs are added; false by default.
	Enabled *bool `json:"enabled,omitempty"`
	// Where the workload manager stores a file for each GPU; /var/lib/dcgm-exporter/job-mapping by
	// default.
	Directory HostPath `json:"directory,omitempty"`
}

// IsEnabled reports whether jobs' names are wanted.
func (h *DCGMExporterHPCJobMappingConfig) IsEnabled() bool {
	return h != nil && valueOr(h.Enabled, false)
}

// DCGMExporterServiceConfig configures the exporter's Service.
type DCGMExporterServiceConfig struct {
	// The type of the Service.
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer;""
	Type corev1.ServiceType `json:"type,omitempty"`
	// Whether the Service routes to the exporter of the same node (Local) or to any (Cluster).
	// +kubebuilder:validation:Enum=Cluster;Local
	InternalTrafficPolicy *corev1.ServiceInternalTrafficPolicy `json:"internalTrafficPolicy,omitempty"`
}

// DCGMExporterServiceMonitorConfig configures the prometheus-operator's ServiceMonitor.
type DCGMExporterServiceMonitorConfig struct {
	// Whether a ServiceMonitor is created; false by default.
	Enabled *bool `json:"enabled,omitempty"`
	// The interval between scrapes: "15s".
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$`
	Interval string `json:"interval,omitempty"`
	// The timeout of a scrape: "10s".
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:Pattern=`^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$`
	ScrapeTimeout string `json:"scrapeTimeout,omitempty"`
	// Whether labels of metrics override those of the target.
	HonorLabels *bool `json:"honorLabels,omitempty"`
	// Labels of the ServiceMonitor.
	AdditionalLabels map[string]string `json:"additionalLabels,omitempty"`
	// Rules that rewrite the labels of targets.
	Relabelings []RelabelConfig `json:"relabelings,omitempty"`
}

// RelabelConfig rewrites labels; see Prometheus's relabel_config.
type RelabelConfig struct {
	// Labels whose values are joined.
	// +kubebuilder:validation:items:Pattern=`^[a-zA-Z_][a-zA-Z0-9_]*$`
	SourceLabels []string `json:"sourceLabels,omitempty"`
	// The separator of the joined values.
	Separator *string `json:"separator,omitempty"`
	// The label that is written.
	TargetLabel string `json:"targetLabel,omitempty"`
	// The expression that the joined values must match.
	Regex string `json:"regex,omitempty"`
	// The modulus for hashmod.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740992
	Modulus int64 `json:"modulus,omitempty"`
	// The value that is written; it may refer to groups of regex.
	Replacement *string `json:"replacement,omitempty"`
	// The action.
	// +kubebuilder:validation:Enum=replace;Replace;keep;Keep;drop;Drop;hashmod;HashMod;labelmap;LabelMap;labeldrop;LabelDrop;labelkeep;LabelKeep;lowercase;Lowercase;uppercase;Uppercase;keepequal;KeepEqual;dropequal;DropEqual
	// +kubebuilder:default=replace
	Action string `json:"action,omitempty"`
}
