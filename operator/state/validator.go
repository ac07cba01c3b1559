package state

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/deployments"
	"github.com/gpuready/gpuready/internal/nvidia"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/progress"
)

// validators adds the validators to the first state that they prove; they prove later ones, too.
func (r *renderer) validators() error {
	spec := r.spec.Validator
	image := r.validatorImage()
	for field, env := range map[string][]v1.EnvVar{
		"validator.env": spec.Env, "validator.driver.env": spec.Driver.Env, "validator.toolkit.env": spec.Toolkit.Env, "validator.cuda.env": spec.CUDA.Env, "validator.plugin.env": spec.Plugin.Env,
	} {
		r.reportUnfollowed(field, nvidia.ValidatorSettings(), env)
	}
	for _, i := range r.injections {
		d, err := r.newAgent(deployments.Validator, image, i, false)
		if err != nil {
			return err
		}
		c := container(d, "validator")
		// The policy is the only source of settings: a ConfigMap of the static manifests would
		// go unnoticed.
		c.EnvFrom = nil
		r.setValidation(c)
		if r.needsToolkitHandler(i) && r.offersToolkitHandler(i) && !r.isDefault() {
			setEnv(c, v1.EnvVar{Name: "VALIDATOR_RUNTIME_CLASS", Value: r.runtimeClass()})
		}
		r.setHostPaths(d, c)
		r.moveKubelet(d, c, "pod-resources", hostPrefix(i), "pod-resources", "POD_RESOURCES_SOCKET")
		for _, proof := range []struct {
			name, workload string // workload is our variable for WITH_WORKLOAD of this proof; "": it has no workload
			spec           v1.ValidationSpec
		}{{"driver", "", spec.Driver}, {"toolkit", "", spec.Toolkit}, {"cuda", "CUDA_WITH_WORKLOAD", spec.CUDA}, {"plugin", "PLUGIN_WITH_WORKLOAD", spec.Plugin}} {
			replaceEnv(c, r.env("validator."+proof.name, renameVariable(proof.spec.Env, "WITH_WORKLOAD", proof.workload))...)
		}
		r.overlay("validator", c, spec.ContainerSpec)
		if err := r.finish(progress.DriverValidation, d, operandValidator, i, podFields{"validator", &spec.PodSpec}, spec.ImageSpec); err != nil {
			return err
		}
	}
	return nil
}

// renameVariable returns the variables with another name for one of them; "" leaves it out. The
// proofs share one container, and each has a variable of that name.
func renameVariable(vars []v1.EnvVar, from, to string) []v1.EnvVar {
	vars = slices.Clone(vars)
	for i := range vars {
		if vars[i].Name == from {
			vars[i].Name = to
		}
	}
	return slices.DeleteFunc(vars, func(e v1.EnvVar) bool { return to == "" && e.Name == "" })
}

func (r *renderer) validatorImage() string {
	return r.in.Cluster.ownImage(deployments.Validator, r.spec.Validator.ImageSpec)
}

// setValidation sets the validator's settings that follow from the rest of the policy.
// mayBeSimulated reports whether a node may have a simulated driver: the policy's, which nodes keep
// until an NVIDIADriver selects them, or that of an NVIDIADriver.
func (r *renderer) mayBeSimulated() bool {
	simulated := r.spec.Driver.IsSimulated()
	for _, spec := range r.in.Specs {
		simulated = simulated || spec.Driver.IsSimulated()
	}
	return simulated && r.spec.Driver.IsEnabled()
}

func (r *renderer) setValidation(c *corev1.Container) {
	set := func(name, value string) { setEnv(c, v1.EnvVar{Name: name, Value: value}) }
	spec := r.spec.Validator.ImageSpec
	if spec.ImagePullPolicy != "" {
		set("VALIDATOR_IMAGE_PULL_POLICY", string(spec.PullPolicy()))
	}
	if len(spec.ImagePullSecrets) > 0 {
		set("VALIDATOR_IMAGE_PULL_SECRETS", strings.Join(spec.ImagePullSecrets, ","))
	}
	if r.mayBeSimulated() {
		set("ALLOW_SIMULATED", "true")
	}
	taint := &r.spec.Node.StartupTaint
	if taint.Key != "" {
		set("STARTUP_TAINT", taint.Key)
	}
	if taint.Managed() {
		set("STARTUP_TAINT_MANAGE", "true")
		set("STARTUP_TAINT_SETTLE", taint.SettleTime().String())
	}
}
