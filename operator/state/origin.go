package state

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/progress"
)

// setOrigins configures, for our driver container, the source of modules that its image does
// not have, and how they are signed.
func (r *renderer) setOrigins(d *appsv1.DaemonSet, ctr *corev1.Container, c driver.Choice) {
	spec := &r.spec.Driver
	values := map[string]string{driver.EnvVersion: c.Version, driver.EnvOSTag: c.Pool.OS}
	if c.Variant == driver.DriverToolkit {
		values[driver.EnvRHCOS] = c.Pool.RHCOS
	}
	for _, name := range []string{driver.EnvVersion, driver.EnvOSTag, driver.EnvRHCOS} {
		if values[name] != "" {
			setEnv(ctr, v1.EnvVar{Name: name, Value: values[name]})
		}
	}
	repository := driver.RepositoryParts(spec)
	switch {
	case c.Variant == driver.Precompiled:
		repository = driver.PodParts{} // its image has the modules: nothing is pulled or pushed
	case spec.PrebuildRepository() != "" && c.Version == "":
		r.problem(progress.Driver, VersionUnknown, fmt.Sprintf("spec.driver.prebuild.repository: the driver's version, with which tags begin there, is in neither spec.driver.version (as 580.95.05) nor label io.gpuready.driver of %s: "+
			"nothing is pulled or pushed. Set one of the two", c.Image))
		repository = driver.PodParts{}
	}
	for _, o := range []driver.PodParts{repository, driver.SigningParts(spec)} {
		setEnv(ctr, o.Env...)
		ctr.VolumeMounts = append(ctr.VolumeMounts, o.Mounts...)
		d.Spec.Template.Spec.Volumes = append(d.Spec.Template.Spec.Volumes, o.Volumes...)
	}
}

// reportIgnoredFields reports the fields that a driver container that is not ours ignores.
func (r *renderer) reportIgnoredFields(c driver.Choice) {
	why := c.Image + " is no driver container of gpuready (it has no label io.gpuready.driver)"
	if c.AssumedNVIDIA {
		why = c.Image + " is run as NVIDIA's driver container, as its label io.gpuready.driver could not be looked up"
	}
	for field, set := range map[string]bool{
		"prebuild.repository": r.spec.Driver.PrebuildRepository() != "", "moduleSigning.secret": r.spec.Driver.SigningSecret() != "",
	} {
		if set {
			r.problem(progress.Driver, FieldPassedOver, fmt.Sprintf("spec.driver.%s is ignored: %s. Remove the field, or name an image that is made from gpuready/driver", field, why))
		}
	}
}
