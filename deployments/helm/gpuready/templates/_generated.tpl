{{- /* Made by `make generate`: what other parts of the product define. */}}

{{- define "gpuready.choices" -}}
['nvidia.com/gpu.present', 'nvidia.com/gpu.deploy.', 'nvidia.com/gpu.workload.', 'nvidia.com/gpu.serve']
{{- end }}

{{- define "gpuready.feature" -}}
^nvidia\.com/((gpu|cuda|gfd|mig-[A-Za-z0-9._-]+)\.[A-Za-z0-9._-]*[A-Za-z0-9]|mig\.capable|mig\.strategy|mps\.capable)$
{{- end }}

{{- define "gpuready.startup" -}}
['nvidia.com/gpu-not-ready', 'gpuready.io/not-ready', 'startup-taint.cluster-autoscaler.kubernetes.io/gpu-not-ready']
{{- end }}
