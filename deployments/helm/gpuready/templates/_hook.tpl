{{- /* A Job of the operator's image with rights of its own, at a point of the release's
       life; on the cluster nothing stays of it. The argument: root, name, on (the hook),
       where (of files/rights.yaml), args, seconds. */}}
{{- define "gpuready.hook" -}}
{{- $root := .root }}
{{- $meta := include "gpuready.hookMeta" . }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  {{- $meta | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ .name }}
  {{- $meta | nindent 2 }}
rules:
  {{- include "gpuready.rules" (list $root .where) | nindent 2 }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .name }}
  {{- $meta | nindent 2 }}
roleRef: { apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ .name }} }
subjects:
  - { kind: ServiceAccount, name: {{ .name }}, namespace: {{ $root.Release.Namespace }} }
---
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .name }}
  namespace: {{ $root.Release.Namespace }}
  {{- include "gpuready.hookMeta" (merge (dict "weight" "1") .) | nindent 2 }}
spec:
  backoffLimit: 2
  activeDeadlineSeconds: {{ .seconds }}
  template:
    metadata:
      labels:
        app: {{ .name }}
        app.kubernetes.io/part-of: gpuready
    spec:
      restartPolicy: Never
      serviceAccountName: {{ .name }}
      automountServiceAccountToken: true
      {{- with include "gpuready.pullSecrets" $root | fromJsonArray }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      nodeSelector:
        kubernetes.io/os: linux
        {{- with $root.Values.operator.nodeSelector }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      {{- with $root.Values.operator.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      enableServiceLinks: false
      securityContext:
        {{- include "gpuready.restricted" $root | nindent 8 }}
      containers:
        - name: {{ .name }}
          image: {{ include "gpuready.image" $root }}
          imagePullPolicy: {{ $root.Values.operator.imagePullPolicy }}
          args: {{ toJson .args }}
          env:
            - name: POD_NAMESPACE
              valueFrom: { fieldRef: { fieldPath: metadata.namespace } }
            - { name: OPERAND_NAMESPACE, value: {{ include "gpuready.operands" $root }} }
          resources:
            requests: { cpu: 10m, memory: 32Mi }
            limits: { memory: 256Mi }
          securityContext:
            {{- include "gpuready.confined" $root | nindent 12 }}
          terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{- define "gpuready.hookMeta" -}}
labels:
  {{- include "gpuready.labels" .root | nindent 2 }}
annotations:
  helm.sh/hook: {{ .on }}
  helm.sh/hook-weight: {{ .weight | default "0" | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
