package schematest

import (
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// Fields lists the paths of the leaf fields of spec, sorted: "driver.image", "driver.env".
func (s *Schema) Fields() []string {
	var paths []string
	var walk func(s *schema.Structural, path string)
	walk = func(s *schema.Structural, path string) {
		if len(s.Properties) == 0 {
			paths = append(paths, path)
		}
		for name, child := range s.Properties {
			walk(&child, strings.TrimPrefix(path+"."+name, "."))
		}
	}
	spec := s.Structural.Properties["spec"]
	walk(&spec, "")
	slices.Sort(paths)
	return paths
}

// Served lists the paths of the fields that the operator supports, sorted.
func Served() []string {
	const image = "repository,image,version,imagePullPolicy,imagePullSecrets"
	const container = image + ",resources.limits,resources.requests,args,env"
	const probe = "initialDelaySeconds,timeoutSeconds,periodSeconds,successThreshold,failureThreshold"
	var paths []string
	for parent, fields := range map[string]string{
		"operator":     "labels,annotations,runtimeClass,use_ocp_driver_toolkit",
		"daemonsets":   "labels,annotations,tolerations,priorityClassName,updateStrategy,rollingUpdate.maxUnavailable",
		"node":         "startupTaint.key,startupTaint.manage,startupTaint.settle",
		"hostPaths":    "rootFS,driverInstallDir",
		"cdi":          "enabled",
		"mig":          "strategy",
		"gfd":          "enabled",
		"toolkit":      "enabled,installDir," + container,
		"devicePlugin": "enabled,config.name,config.default,mps.root," + container,
		"validator":    "plugin.env,toolkit.env,driver.env,cuda.env," + container,
		"dcgm":         "enabled," + container,
		"dcgmExporter": "enabled,podAnnotations,podLabels,config.name,service.type,service.internalTrafficPolicy,hostPID,hostNetwork,hpcJobMapping.enabled,hpcJobMapping.directory," + container,
		"migManager":   "enabled,config.name,config.default,gpuClientsConfig.name," + container,
		"driver": "enabled,usePrecompiled,precompiledFallback,kernelModuleType,rdma.enabled,rdma.useHostMofed,secretEnv," +
			"repoConfig.configMapName,certConfig.name,licensingConfig.configMapName,licensingConfig.secretName,licensingConfig.nlsEnabled,virtualTopology.config,kernelModuleConfig.name," +
			"prebuild.repository,prebuild.secret,prebuild.insecure,moduleSigning.secret," + container,
		"driver.simulated":                       "enabled,profile," + container,
		"driver.startupProbe":                    probe,
		"driver.livenessProbe":                   probe,
		"driver.readinessProbe":                  probe,
		"driver.upgradePolicy":                   "autoUpgrade,maxParallelUpgrades,maxUnavailable",
		"driver.upgradePolicy.waitForCompletion": "podSelector,timeoutSeconds",
		"driver.upgradePolicy.podDeletion":       "podSelector,force,timeoutSeconds,deleteEmptyDir",
		"driver.upgradePolicy.drain":             "enable,podSelector,force,timeoutSeconds,deleteEmptyDir",
	} {
		for field := range strings.SplitSeq(fields, ",") {
			paths = append(paths, parent+"."+field)
		}
	}
	slices.Sort(paths)
	return paths
}
