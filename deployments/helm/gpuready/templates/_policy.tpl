{{- /* The spec of the policy: the values of the same names. */}}
{{- define "gpuready.policy" -}}
{{- $root := . }}
{{- $spec := dict }}
{{- range $key := include "gpuready.specKeys" . | fromJsonArray }}
{{- if and (ne $key "operator") (hasKey $root.Values $key) }}
{{- $_ := set $spec $key (deepCopy (index $root.Values $key)) }}
{{- end }}
{{- end }}
{{- $_ := set $spec "operator" (omit .Values.operator "labels" "annotations" "logging" "resources" "env") }}
{{- with $spec.driver.upgradePolicy }}
{{- if .gpuPodDeletion }}
{{- $_ := set $spec.driver "upgradePolicy" (merge (dict "podDeletion" .gpuPodDeletion) (omit . "gpuPodDeletion")) }}
{{- end }}
{{- end }}
{{- $kinds := (.Files.Get "files/values.json" | fromJson).policy }}
{{- include "gpuready.keepFields" (list $spec $kinds) }}
{{- /* A ConfigMap without a name is none. */}}
{{- range $operand := list "devicePlugin" "dcgmExporter" "migManager" }}
{{- $config := dig $operand "config" dict $spec }}
{{- if and $config (not $config.name) }}
{{- $_ := unset $config "name" }}
{{- if or (eq $operand "devicePlugin") (not $config) }}
{{- $_ := unset (get $spec $operand) "config" }}
{{- end }}
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

{{- /* Removes what are values of the chart but not fields of the policy: list values kinds. */}}
{{- define "gpuready.keepFields" -}}
{{- $values := index . 0 }}
{{- $kinds := index . 1 }}
{{- range $name, $value := $values }}
{{- $kind := get $kinds $name }}
{{- if not $kind }}
{{- $_ := unset $values $name }}
{{- else if and (kindIs "map" $kind) (kindIs "map" $value) (not (hasKey $kind "*")) }}
{{- include "gpuready.keepFields" (list $value $kind) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* A component of the spec, and those in it, from global.registry and with
       global.imagePullSecrets: list $ component. It is changed in place. */}}
{{- define "gpuready.component" -}}
{{- $root := index . 0 }}
{{- $one := index . 1 }}
{{- if kindIs "map" $one }}
{{- if $one.repository }}
{{- $_ := set $one "repository" (include "gpuready.repository" (list $root $one.repository)) }}
{{- else if and (not $one.version) (kindIs "string" $one.image) (contains "/" (toString $one.image)) }}
{{- /* A whole reference. */}}
{{- $_ := set $one "image" (include "gpuready.repository" (list $root $one.image)) }}
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
