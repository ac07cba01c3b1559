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
{{- include "gpuready.makePortable" $spec }}
{{- /* Empty values are chosen by the operator. */}}
{{- range $key, $value := $spec }}
{{- if not $value }}
{{- $_ := unset $spec $key }}
{{- end }}
{{- end }}
{{- include "gpuready.checkInstalled" (list . $spec) }}
{{- toYaml $spec }}
{{- end }}

{{- /* Changes a spec so that the definition of NVIDIA's operator, releases 23.3 and newer, accepts
       it unless a value needs one of ours. It removes fields that NVIDIA's lacks where they
       have their defaults, and adds one that is required there. */}}
{{- define "gpuready.makePortable" -}}
{{- $driver := .driver | default dict }}
{{- if not (dig "simulated" "enabled" false $driver) }}
{{- $_ := unset $driver "simulated" }}
{{- end }}
{{- $limit := dig "draDriver" "servePolicy" "maxUnavailable" "25%" . | toString }}
{{- if dig "draDriver" "enabled" false . }}
{{- else if eq $limit "25%" }}
{{- $_ := unset . "draDriver" }}
{{- else }}
{{- /* It counts until all nodes are back. */}}
{{- $_ := set . "draDriver" (pick .draDriver "enabled" "servePolicy") }}
{{- end }}
{{- if not (dig "prebuild" "repository" "" $driver) }}
{{- $_ := unset $driver "prebuild" }}
{{- end }}
{{- if not (dig "moduleSigning" "secret" "" $driver) }}
{{- $_ := unset $driver "moduleSigning" }}
{{- end }}
{{- $taint := dig "startupTaint" dict (.node | default dict) | default dict }}
{{- if not (or $taint.manage (omit $taint "manage")) }}
{{- $_ := unset . "node" }}
{{- end }}
{{- $paths := .hostPaths | default dict }}
{{- range $name, $path := dict "rootFS" "/" "driverInstallDir" "/run/nvidia/driver" }}
{{- if eq (get $paths $name | toString) $path }}
{{- $_ := unset $paths $name }}
{{- end }}
{{- end }}
{{- if not .nodeStatusExporter }}
{{- $_ := set . "nodeStatusExporter" (dict "enabled" false) }}
{{- end }}
{{- end }}

{{- /* Refuses to install a policy with fields that the cluster's definition lacks, because it
       is another's: list $ spec. Before an upgrade a Job updates the definition. */}}
{{- define "gpuready.checkInstalled" -}}
{{- $root := index . 0 }}
{{- $definition := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" "clusterpolicies.nvidia.com" }}
{{- if and $root.Release.IsInstall $definition }}
{{- $schema := (index $definition.spec.versions 0).schema.openAPIV3Schema.properties.spec }}
{{- with include "gpuready.unknownFields" (list (index . 1) $schema "") | trim }}
{{- fail (printf "\nthe cluster's CustomResourceDefinition clusterpolicies.nvidia.com, which is not this chart's, lacks these fields of the policy: %s. Install the chart's (without --skip-crds, with --force-conflicts), or remove these values" (splitList " " . | join ", ")) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The fields of an object that a schema lacks, followed by blanks: list object schema path. */}}
{{- define "gpuready.unknownFields" -}}
{{- $object := index . 0 }}
{{- $schema := index . 1 }}
{{- $path := index . 2 }}
{{- if and (kindIs "map" $object) $schema.properties }}
{{- range $name, $value := $object }}
{{- if hasKey $schema.properties $name }}
{{- include "gpuready.unknownFields" (list $value (get $schema.properties $name) (printf "%s%s." $path $name)) }}
{{- else }}
{{- printf "%s%s " $path $name }}
{{- end }}
{{- end }}
{{- end }}
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

{{- /* The CustomResourceDefinition of ClusterPolicy. */}}
{{- define "gpuready.definition" -}}
{{- .Files.Get "crds/nvidia.com_clusterpolicies.yaml" }}
{{- end }}

{{- /* The fields of an NVIDIADriver that a policy's spec has, too. Some have other names. */}}
{{- define "gpuready.nvidiaDriver" -}}
{{- $driver := .driver | default dict }}
{{- $spec := omit $driver "enabled" "useNvidiaDriverCRD" "use_ocp_driver_toolkit" "rollingUpdate" "nodeSelector" "affinity" "securityContext" "repoConfig" "licensingConfig" "virtualTopology" }}
{{- range $name := list "gds" "gdrcopy" }}
{{- with get $ $name }}
{{- $_ := set $spec $name . }}
{{- end }}
{{- end }}
{{- with dig "repoConfig" "configMapName" "" $driver }}
{{- $_ := set $spec "repoConfig" (dict "name" .) }}
{{- end }}
{{- with dig "virtualTopology" "config" "" $driver }}
{{- $_ := set $spec "virtualTopologyConfig" (dict "name" .) }}
{{- end }}
{{- with $driver.licensingConfig }}
{{- $licence := omit . "configMapName" }}
{{- if .configMapName }}
{{- $_ := set $licence "name" .configMapName }}
{{- end }}
{{- $_ := set $spec "licensingConfig" $licence }}
{{- end }}
{{- toYaml $spec }}
{{- end }}
