{{- /* The namespace of the operands. */}}
{{- define "gpuready.operands" -}}
{{- include "gpuready.readValues" . }}
{{- .Values.operands.namespace | default .Release.Namespace }}
{{- end }}

{{- define "gpuready.labels" -}}
{{- include "gpuready.readValues" . -}}
app.kubernetes.io/name: gpuready
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: gpuready
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with omit (.Values.operator.labels | default dict) "app" "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/part-of" "app.kubernetes.io/managed-by" }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* A repository at global.registry: the host is replaced, the path is
       the same. The argument: list $ repository. */}}
{{- define "gpuready.repository" -}}
{{- $registry := (index . 0).Values.global.registry | trimSuffix "/" }}
{{- $repository := index . 1 }}
{{- if $registry }}
{{- printf "%s/%s" $registry (regexReplaceAll "^[^/]*[.:][^/]*/" $repository "") }}
{{- else }}
{{- $repository }}
{{- end }}
{{- end }}

{{- /* The digests of our images by name, as a JSON map. Those of a release are a file and not
       values, since `helm upgrade --reuse-values` would keep those of the release before. */}}
{{- define "gpuready.digests" -}}
{{- merge (deepCopy (.Values.operator.digests | default dict)) (.Files.Get "files/digests.yaml" | fromYaml) | toJson }}
{{- end }}

{{- /* The operator's image. */}}
{{- define "gpuready.image" -}}
{{- $o := .Values.operator }}
{{- $version := $o.version | default (get (include "gpuready.digests" . | fromJson) $o.image) | default .Chart.AppVersion }}
{{- printf "%s/%s%s%s" (include "gpuready.repository" (list . $o.repository)) $o.image (hasPrefix "sha256:" $version | ternary "@" ":") $version }}
{{- end }}

{{- /* The names of the pull secrets of the operator's own pods, as a JSON list of objects. */}}
{{- define "gpuready.pullSecrets" -}}
{{- $all := .Values.global.imagePullSecrets }}
{{- range .Values.operator.imagePullSecrets }}
{{- $all = append $all (dict "name" .) }}
{{- end }}
{{- toJson $all }}
{{- end }}

{{- define "gpuready.isOpenShift" -}}
{{- if or .Values.platform.openshift (.Capabilities.APIVersions.Has "security.openshift.io/v1") }}true{{ end }}
{{- end }}

{{- /* A pod of the operator's image: restricted, according to the Pod Security Standards. */}}
{{- define "gpuready.restricted" -}}
runAsNonRoot: true
seccompProfile: { type: RuntimeDefault }
{{- end }}

{{- define "gpuready.confined" -}}
allowPrivilegeEscalation: false
capabilities: { drop: [ALL] }
readOnlyRootFilesystem: true
{{- end }}

{{- /* The operator's variables. */}}
{{- define "gpuready.environment" -}}
- name: POD_NAMESPACE
  valueFrom: { fieldRef: { fieldPath: metadata.namespace } }
# If the leader's container restarts, the next one continues at once.
- name: POD_NAME
  valueFrom: { fieldRef: { fieldPath: metadata.name } }
- name: POD_UID
  valueFrom: { fieldRef: { fieldPath: metadata.uid } }
- { name: OPERAND_NAMESPACE, value: {{ include "gpuready.operands" . }} }
# Repository of the images that the policy does not name.
- { name: IMAGE_REPOSITORY, value: {{ include "gpuready.repository" (list . .Values.operator.repository) | quote }} }
- { name: IMAGE_VERSION, value: {{ .Values.operator.operandVersion | default .Chart.AppVersion | quote }} }
{{- if not .Values.operator.operandVersion }}
{{- range $name, $digest := include "gpuready.digests" . | fromJson }}
{{- if ne $name $.Values.operator.image }}
- { name: RELATED_IMAGE_{{ $name | replace "-" "_" | upper }}, value: {{ printf "%s/%s@%s" (include "gpuready.repository" (list $ $.Values.operator.repository)) $name $digest | quote }} }
{{- end }}
{{- end }}
{{- end }}
- { name: LOG_LEVEL, value: {{ include "gpuready.logLevel" . }} }
{{- with .Values.operator.nvidiaRelease }}
- { name: NVIDIA_RELEASE, value: {{ . | quote }} }
{{- end }}
{{- with .Values.global.registry }}
- { name: NVIDIA_REGISTRY, value: {{ trimSuffix "/" . | quote }} }
{{- end }}
{{- with .Values.proxy.httpsProxy }}
- { name: HTTPS_PROXY, value: {{ . | quote }} }
{{- end }}
{{- with .Values.proxy.httpProxy }}
- { name: HTTP_PROXY, value: {{ . | quote }} }
{{- end }}
{{- with .Values.proxy.noProxy }}
- { name: NO_PROXY, value: {{ . | quote }} }
{{- end }}
{{- if .Values.trustedCA.configMapName }}
- { name: REGISTRY_CA, value: /etc/gpuready/ca }
{{- end }}
{{- with .Values.operator.insecureRegistries }}
- { name: INSECURE_REGISTRIES, value: {{ join "," . | quote }} }
{{- end }}
{{- end }}

{{- /* Those variables, without the ones that operator.env has, too. */}}
{{- define "gpuready.variables" -}}
{{- $given := dict }}
{{- range .Values.operator.env }}
{{- $_ := set $given .name true }}
{{- end }}
{{- if $given }}
{{- range include "gpuready.environment" . | fromYamlArray }}
{{- if not (hasKey $given .name) }}
- {{ toJson . }}
{{- end }}
{{- end }}
{{ toYaml .Values.operator.env }}
{{- else }}
{{- include "gpuready.environment" . }}
{{- end }}
{{- end }}

{{- /* The log's level, also from the levels of NVIDIA's operator. */}}
{{- define "gpuready.logLevel" -}}
{{- $level := .Values.operator.logging.level | lower }}
{{- if or .Values.operator.logging.develMode (regexMatch "^[1-9][0-9]*$" $level) }}debug
{{- else if has $level (list "debug" "info" "warn" "error") }}{{ $level }}
{{- else if eq $level "warning" }}warn
{{- else if has $level (list "dpanic" "panic" "fatal") }}error
{{- else }}info
{{- end }}
{{- end }}

{{- /* The rules of a role: list $ where. */}}
{{- define "gpuready.rules" -}}
{{- $where := index . 1 }}
{{- range (index . 0).Files.Get "files/rights.yaml" | fromYamlArray }}
{{- if eq .where $where }}
{{- range $verb, $why := .verbs }}
# {{ $verb }}: {{ $why }}
{{- end }}
- apiGroups: [{{ .group | quote }}]
  resources: [{{ join ", " .resources }}]
{{- with .names }}
  resourceNames: [{{ join ", " . }}]
{{- end }}
  verbs: [{{ keys .verbs | sortAlpha | join ", " }}]
{{- end }}
{{- end }}
{{- end }}

{{- /* ServiceAccounts of the operands without rights, and the label app of their pods. */}}
{{- define "gpuready.accounts" -}}
{
  "gpu-driver": "nvidia-driver-daemonset",
  "gpu-driver-simulator": "nvidia-driver-daemonset",
  "gpu-toolkit": "nvidia-container-toolkit-daemonset",
  "gpu-device-plugin": "nvidia-device-plugin-daemonset",
  "gpu-mps-control-daemon": "nvidia-device-plugin-mps-control-daemon",
  "gpu-dcgm": "nvidia-dcgm",
  "gpu-dcgm-exporter": "nvidia-dcgm-exporter",
  "gpu-mig-manager": "nvidia-mig-manager"
}
{{- end }}

{{- /* Whether the cluster has ValidatingAdmissionPolicies. */}}
{{- define "gpuready.hasAdmission" -}}
{{- if semverCompare ">= 1.30.0-0" .Capabilities.KubeVersion.Version }}true{{ end }}
{{- end }}

{{- /* The peers of a NetworkPolicy's rule that may scrape; without any, every pod. */}}
{{- define "gpuready.scrapers" -}}
{{- with concat (.Values.networkPolicy.metricsFrom | default list) (.Values.networkPolicy.ingress.from | default list) }}
from:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
