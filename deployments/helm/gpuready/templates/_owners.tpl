{{- /* Refuses to install over objects of another installation: Helm itself would name one of them
       and no way out. The ClusterRoleBinding gpuready-validator is in every installation, and its
       subject is in the agents' namespace. */}}
{{- define "gpuready.checkOwners" -}}
{{- include "gpuready.readValues" . }}
{{- if and .Release.IsInstall (not .Values.takeOwnership) }}
{{- $group := "rbac.authorization.k8s.io/v1" }}
{{- $binding := lookup $group "ClusterRoleBinding" "" "gpuready-validator" }}
{{- if $binding }}
{{- $namespace := get (first ($binding.subjects | default (list dict))) "namespace" }}
{{- $owner := $binding.metadata.annotations | default dict }}
{{- $release := get $owner "meta.helm.sh/release-name" }}
{{- if $release }}
{{- $in := get $owner "meta.helm.sh/release-namespace" }}
{{- if or (ne $release .Release.Name) (ne $in .Release.Namespace) }}
{{- fail (printf "\ngpuready is installed already, as Helm release %s in namespace %s. Upgrade it (helm upgrade %[1]s -n %[2]s), or remove it first (helm uninstall %[1]s -n %[2]s)" $release $in) }}
{{- end }}
{{- else if lookup $group "ClusterRole" "" "gpuready-operator" }}
{{- $force := semverCompare ">=4.0.0-0" .Capabilities.HelmVersion.Version | ternary " --force-conflicts" "" }}
{{- fail (printf "\ngpuready's operator is installed already, in namespace %s, from manifests and not by Helm. To hand it over with its policies and operands, add these flags: -n %[1]s --take-ownership%[2]s --set takeOwnership=true --set clusterPolicy.create=false (docs/manifests-to-operator.md)" $namespace $force) }}
{{- else }}
{{- fail (printf "\ngpuready's agents are installed already, in namespace %s, from manifests and not by Helm. Delete them first; pods that use GPUs continue: kubectl delete -f FILE, with the file that was applied, such as gpuready.yaml (docs/manifests-to-operator.md)" $namespace) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
