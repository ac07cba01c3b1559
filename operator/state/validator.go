package state

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/gpuready/gpuready/deployments/agents"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/progress"
)

// validators adds the validators to the first state that they prove; they prove later ones, too.
func (r *renderer) validators() error {
	spec := r.spec.Validator
	image := r.validatorImage()
	for _, i := range r.injections {
		d, err := r.newAgent(agents.Validator, image, i, false)
		if err != nil {
			return err
		}
		c := container(d, "validator")
		// The policy is the only source of settings: a ConfigMap of the static manifests would
		// go unnoticed.
		c.EnvFrom = nil
		r.setValidation(c)
		if r.usesHandler(i) && r.hasHandler(i) && !r.isDefault() {
			setEnv(c, v1.EnvVar{Name: "VALIDATOR_RUNTIME_CLASS", Value: r.runtimeClass()})
		}
		r.setHostPaths(d, c)
		for _, proof := range []v1.ValidationSpec{spec.Driver, spec.Toolkit, spec.CUDA, spec.Plugin} {
			setEnv(c, r.env("validator", proof.Env)...)
		}
		r.overlay("validator", c, spec.ContainerSpec)
		if err := r.finish(progress.DriverValidation, d, operandValidator, i, spec.ImageSpec); err != nil {
			return err
		}
	}
	return nil
}

func (r *renderer) validatorImage() string {
	return r.in.Cluster.ownImage(agents.Validator, r.spec.Validator.ImageSpec)
}

// setValidation sets the validator's settings that follow from the rest of the policy.
func (r *renderer) setValidation(c *corev1.Container) {
	set := func(name, value string) { setEnv(c, v1.EnvVar{Name: name, Value: value}) }
	spec := r.spec.Validator.ImageSpec
	if spec.ImagePullPolicy != "" {
		set("VALIDATOR_IMAGE_PULL_POLICY", string(spec.PullPolicy()))
	}
	if len(spec.ImagePullSecrets) > 0 {
		set("VALIDATOR_IMAGE_PULL_SECRETS", strings.Join(spec.ImagePullSecrets, ","))
	}
	if r.spec.Driver.IsEnabled() && r.spec.Driver.IsSimulated() {
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
