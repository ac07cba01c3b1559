{{- /* The spec of the policy: the values of the same names. */}}
{{- define "gpuready.policy" -}}
{{- $root := . }}
{{- $spec := dict }}
{{- range $key := include "gpuready.specKeys" . | fromJsonArray }}
{{- if and (ne $key "operator") (hasKey $root.Values $key) }}
{{- $_ := set $spec $key (deepCopy (index $root.Values $key)) }}
{{- end }}
{{- end }}
{{- /* The chart's own values of the operator are not part of the policy. */}}
{{- $_ := set $spec "operator" (pick .Values.operator "defaultRuntime" "runtimeClass" "initContainer" "use_ocp_driver_toolkit") }}
{{- with $spec.devicePlugin.config }}
{{- if .name }}
{{- $_ := set $spec.devicePlugin "config" (omit . "create" "data") }}
{{- else }}
{{- $_ := unset $spec.devicePlugin "config" }}
{{- end }}
{{- end }}
{{- with $spec.driver.upgradePolicy }}
{{- if .gpuPodDeletion }}
{{- $_ := set $spec.driver "upgradePolicy" (merge (dict "podDeletion" .gpuPodDeletion) (omit . "gpuPodDeletion")) }}
{{- end }}
{{- end }}
{{- range $spec }}
{{- include "gpuready.component" (list $root .) }}
{{- end }}
{{- /* Empty values are chosen by the operator. */}}
{{- range $key, $value := $spec }}
{{- if not $value }}
{{- $_ := unset $spec $key }}
{{- end }}
{{- end }}
{{- toYaml $spec }}
{{- end }}

{{- /* A component of the spec, and those in it, from global.registry and with
       global.imagePullSecrets: list $ component. It is changed in place. */}}
{{- define "gpuready.component" -}}
{{- $root := index . 0 }}
{{- $one := index . 1 }}
{{- if kindIs "map" $one }}
{{- if $one.repository }}
{{- $_ := set $one "repository" (include "gpuready.repository" (list $root $one.repository)) }}
{{- end }}
{{- if hasKey $one "imagePullSecrets" }}
{{- range $root.Values.global.imagePullSecrets }}
{{- $_ := set $one "imagePullSecrets" (append $one.imagePullSecrets .name | uniq) }}
{{- end }}
{{- end }}
{{- range $one }}
{{- include "gpuready.component" (list $root .) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The fields of a policy's spec, as in its CustomResourceDefinition. */}}
{{- define "gpuready.specKeys" -}}
{{- $versions := (include "gpuready.definition" . | fromYaml).spec.versions }}
{{- (index $versions 0).schema.openAPIV3Schema.properties.spec.properties | keys | sortAlpha | toJson }}
{{- end }}

{{- /* The CustomResourceDefinition. The chart's folder in the repository lacks it. */}}
{{- define "gpuready.definition" -}}
{{- .Files.Get "crds/nvidia.com_clusterpolicies.yaml" | required "the chart has no CustomResourceDefinition: run make chart, and install bin/charts/gpuready-*.tgz" }}
{{- end }}
