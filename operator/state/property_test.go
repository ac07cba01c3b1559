package state

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"pgregory.net/rapid"

	"github.com/gpuready/gpuready/deployments"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/api/v1/schematest"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
)

var injections = []fleet.Injection{fleet.NRI, fleet.CDI, fleet.Annotations, fleet.Handler}

// input draws an input with a policy.
func input(t *rapid.T, p *v1.ClusterPolicy) Input {
	choices := []driver.Choice{ubuntu(), toolkit("412.86.202303241612-0"), precompiled(), simulated(), rhel(), {}}
	in := Input{
		Policy: p, Cluster: cluster,
		Drivers:    rapid.SliceOfN(rapid.SampledFrom(choices), 0, 6).Draw(t, "drivers"),
		Injections: rapid.SliceOfN(rapid.SampledFrom(injections), 0, 6).Draw(t, "injections"),
		Keys:       map[string][]string{},
	}
	in.Cluster.OpenShift = rapid.Bool().Draw(t, "OpenShift")
	in.Cluster.HandOver = rapid.Bool().Draw(t, "hand-over")
	for _, name := range ConfigMaps(&p.Spec.Driver) {
		if rapid.Bool().Draw(t, name+" exists") {
			in.Keys[name] = rapid.SliceOfN(rapid.SampledFrom([]string{"a.conf", "gridd.conf", "0"}), 0, 4).Draw(t, "keys")
		}
	}
	return in
}

func TestAnyAcceptedPolicyRendersToValidObjects(t *testing.T) {
	schema, err := schematest.Load()
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		in := input(t, schema.Random(t))
		objects, _, err := Render(in)
		require.NoError(t, err)
		names := map[string]bool{}
		for _, o := range objects {
			key := fmt.Sprintf("%T %s", o.Object, o.Object.GetName())
			require.False(t, names[key], "%s is there twice", key)
			names[key] = true
			valid(t, o)
		}
		again := in
		again.Policy = in.Policy.DeepCopy()
		again.Drivers, again.Injections = slices.Clone(in.Drivers), slices.Clone(in.Injections)
		slices.Reverse(again.Drivers)
		slices.Reverse(again.Injections)
		same, _, err := Render(again)
		require.NoError(t, err)
		require.Equal(t, objects, same, "the order of the input's lists means nothing")
	})
}

func TestDigestChangesOnlyWithTheContent(t *testing.T) {
	digests := func(spec string, drivers ...driver.Choice) map[string]string {
		objects, _ := render(t, Input{Policy: policy(t, spec), Cluster: cluster, Drivers: drivers, Injections: injections[:1]})
		by := map[string]string{}
		for _, o := range objects {
			by[o.Object.GetName()] = o.Digest
			require.Equal(t, o.Digest, o.Object.GetAnnotations()["gpuready.io/digest"])
			if d, ok := o.Object.(*appsv1.DaemonSet); ok && o.State == progress.Driver {
				by["driver"] = d.Spec.Template.Labels["gpuready.io/driver-digest"]
			}
		}
		return by
	}
	before := digests(`{}`, ubuntu())
	require.Equal(t, before, digests(`{}`, ubuntu()))

	changed := func(after map[string]string) (names []string) {
		for name := range before {
			if before[name] != after[name] {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}
	newer := ubuntu()
	newer.Image += "-1"
	require.Equal(t, []string{"driver", "nvidia-driver-daemonset-ubuntu22.04"}, changed(digests(`{}`, newer)))
	require.Equal(t, []string{"nvidia-driver-daemonset-ubuntu22.04", "nvidia-operator-validator"}, changed(digests(`{validator: {version: v2}}`, ubuntu())),
		"a new validator is no new driver")
	require.Equal(t, []string{"nvidia-container-toolkit-daemonset"}, changed(digests(`{toolkit: {env: [{name: A, value: b}]}}`, ubuntu())))
}

func TestOurDriverIsUpgradedLikeNVIDIAs(t *testing.T) {
	one := func(c driver.Choice) *appsv1.DaemonSet {
		objects, problems := render(t, Input{Policy: policy(t, `{toolkit: {enabled: false}, devicePlugin: {enabled: false}}`), Cluster: cluster, Drivers: []driver.Choice{c}})
		require.Empty(t, problems)
		require.Len(t, objects, 1)
		return objects[0].Object.(*appsv1.DaemonSet)
	}
	for _, c := range []driver.Choice{ubuntu(), precompiled(), toolkit("412.86.202303241612-0")} {
		theirs, own := one(c), one(ours(c))
		require.Equal(t, theirs.Name, own.Name)
		require.Equal(t, theirs.Spec.Selector, own.Spec.Selector)
		require.Equal(t, theirs.Spec.UpdateStrategy, own.Spec.UpdateStrategy)
		a, b := theirs.Spec.Template, own.Spec.Template
		delete(a.Labels, label.DriverDigest)
		delete(b.Labels, label.DriverDigest)
		require.Equal(t, label.Product, b.Labels[label.DriverContainer])
		delete(b.Labels, label.DriverContainer)
		require.Equal(t, a.ObjectMeta, b.ObjectMeta)
		require.Len(t, b.Spec.Containers, len(a.Spec.Containers))
		for i := range a.Spec.Containers {
			require.Equal(t, a.Spec.Containers[i].Name, b.Spec.Containers[i].Name)
		}
		for _, same := range [][2]any{
			{a.Spec.NodeSelector, b.Spec.NodeSelector}, {a.Spec.Affinity, b.Spec.Affinity}, {a.Spec.Tolerations, b.Spec.Tolerations},
			{a.Spec.InitContainers[0], b.Spec.InitContainers[0]}, {a.Spec.ServiceAccountName, b.Spec.ServiceAccountName},
			{a.Spec.PriorityClassName, b.Spec.PriorityClassName}, {a.Spec.HostPID, b.Spec.HostPID},
		} {
			require.Equal(t, same[0], same[1])
		}
		for _, ctr := range slices.Concat(b.Spec.InitContainers, b.Spec.Containers) {
			if ctr.Name == "share" || ctr.Name == "openshift-driver-toolkit-ctr" {
				require.EqualValues(t, 64180, *ctr.SecurityContext.RunAsUser, "in the host's PID namespace nobody is the user of others, too")
			}
		}
		require.Greater(t, *b.Spec.TerminationGracePeriodSeconds, *a.Spec.TerminationGracePeriodSeconds, "its daemons end before the modules")
		require.Nil(t, b.Spec.Containers[0].Command)
		require.Equal(t, label.Product, own.Labels[label.DriverContainer])
		require.NotContains(t, theirs.Labels, label.DriverContainer)
	}
}

func TestOurDriverIsReloadedWhenItsConfigurationChanges(t *testing.T) {
	digest := func(spec string, c driver.Choice) string {
		objects, _ := render(t, Input{Policy: policy(t, spec), Cluster: cluster, Drivers: []driver.Choice{c}, Keys: map[string][]string{"modules": {"nvidia.conf"}}})
		for _, o := range objects {
			if o.State == progress.Driver {
				env := o.Object.(*appsv1.DaemonSet).Spec.Template.Spec.Containers[0].Env
				i := slices.IndexFunc(env, func(e corev1.EnvVar) bool { return e.Name == "DRIVER_CONFIG_DIGEST" })
				require.GreaterOrEqual(t, i, 0)
				return env[i].Value
			}
		}
		return ""
	}
	before, newer := digest(`{}`, rhel()), rhel()
	newer.Image += "-1"
	require.Len(t, before, 32)
	require.Equal(t, before, digest(`{}`, newer), "gpu-driver compares the modules of images")
	require.Equal(t, before, digest(`{driver: {resources: {limits: {memory: 2Gi}}}}`, rhel()))
	require.Equal(t, before, digest(`{driver: {prebuild: {repository: r.example/driver, secret: push, insecure: true}, moduleSigning: {secret: key}}}`, rhel()), "where modules come from")
	for _, spec := range []string{
		`{driver: {kernelModuleType: open}}`, `{driver: {rdma: {enabled: true}}}`, `{driver: {args: [--drm]}}`,
		`{driver: {kernelModuleConfig: {name: modules}}}`, `{driver: {env: [{name: NVFM_CONFIG_FABRIC_MODE, value: "1"}]}}`,
	} {
		require.NotEqual(t, before, digest(spec, rhel()), spec)
	}
}

// The init container is defined twice, since all of the operator's drivers have it.
func TestStaticManifestHasTheSameHostDriverContainer(t *testing.T) {
	data, err := deployments.Driver.Render(deployments.AgentData{Namespace: "gpuready", Image: "x", Validator: "gpuready/validator:v1.2.3"})
	require.NoError(t, err)
	d, err := decode(data)
	require.NoError(t, err)
	r, err := newRenderer(Input{Policy: policy(t, `{}`), Cluster: cluster})
	require.NoError(t, err)
	require.Equal(t, []corev1.Container{r.hostDriver()}, d.Spec.Template.Spec.InitContainers)
	require.Contains(t, d.Spec.Template.Spec.Volumes, r.hostVolume())
}

func TestDisabledOperandsAreNotRendered(t *testing.T) {
	off := `{driver: {enabled: false}, toolkit: {enabled: false}, devicePlugin: {enabled: false}, dcgm: {enabled: false, image: x/y:z}, dcgmExporter: {enabled: false}, migManager: {enabled: false}}`
	objects, problems := render(t, Input{Policy: policy(t, off), Cluster: cluster, Drivers: []driver.Choice{ubuntu()}, Injections: injections})
	require.Empty(t, problems)
	for _, o := range objects {
		require.Equal(t, progress.DriverValidation, o.State, o.Object.GetName())
	}
	require.Len(t, objects, len(injections))
}

func TestKeptPoolIsNotRendered(t *testing.T) {
	kept := precompiled()
	kept.Problem = &driver.Problem{Reason: "PrecompiledImageMissing", Keep: true}
	objects, _ := render(t, Input{Policy: policy(t, `{}`), Cluster: cluster, Drivers: []driver.Choice{kept}})
	require.Empty(t, objects)
}

// valid checks an object against the rules of Kubernetes that its OpenAPI files lack; the golden
// files are checked against those.
func valid(t require.TestingT, o Object) {
	meta := o.Object
	require.Empty(t, validation.IsDNS1123Subdomain(meta.GetName()), meta.GetName())
	validLabels(t, meta.GetLabels())
	d, ok := meta.(*appsv1.DaemonSet)
	if !ok {
		return
	}
	pod := d.Spec.Template
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	require.NoError(t, err)
	require.True(t, selector.Matches(labels.Set(pod.Labels)), d.Name)
	validLabels(t, pod.Labels)
	validLabels(t, pod.Spec.NodeSelector)
	volumes := map[string]bool{}
	for _, v := range pod.Spec.Volumes {
		require.Empty(t, validation.IsDNS1123Label(v.Name), v.Name)
		require.False(t, volumes[v.Name], "%s: volume %s twice", d.Name, v.Name)
		volumes[v.Name] = true
		if v.HostPath != nil {
			require.True(t, path.IsAbs(v.HostPath.Path))
			require.NotContains(t, strings.Split(v.HostPath.Path, "/"), "..")
		}
	}
	names := map[string]bool{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		require.False(t, names[c.Name], c.Name)
		names[c.Name] = true
		validContainer(t, d.Name, c, volumes)
	}
}

func validLabels(t require.TestingT, labels map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		require.Empty(t, validation.IsQualifiedName(key), key)
		require.Empty(t, validation.IsValidLabelValue(labels[key]), "%s=%s", key, labels[key])
	}
}

func validContainer(t require.TestingT, name string, c corev1.Container, volumes map[string]bool) {
	require.NotEmpty(t, c.Image, "%s/%s", name, c.Name)
	variables := map[string]bool{}
	for _, e := range c.Env {
		require.Empty(t, validation.IsRelaxedEnvVarName(e.Name), e.Name)
		require.False(t, variables[e.Name], "%s twice", e.Name)
		variables[e.Name] = true
	}
	paths := map[string]bool{}
	for _, m := range c.VolumeMounts {
		require.True(t, volumes[m.Name], "%s/%s: no volume %s", name, c.Name, m.Name)
		require.False(t, paths[m.MountPath], "%s/%s: %s twice", name, c.Name, m.MountPath)
		require.NotContains(t, m.MountPath, ":")
		require.NotContains(t, strings.Split(m.SubPath, "/"), "..")
		paths[m.MountPath] = true
	}
	for resource, request := range c.Resources.Requests {
		if limit, ok := c.Resources.Limits[resource]; ok {
			require.LessOrEqual(t, request.Cmp(limit), 0, resource)
		}
	}
}

func TestControlCharactersAreLeftOut(t *testing.T) {
	p := policy(t, `{}`)
	p.Spec.Toolkit.Env = []v1.EnvVar{{Name: "A", Value: "b\x7fc\u0090d\ne"}}
	objects, problems := render(t, Input{Policy: p, Cluster: cluster, Injections: injections[:1]})
	require.Len(t, problems, 1)
	require.Equal(t, ValueInvalid, problems[0].Reason)
	for _, o := range objects {
		if o.State == progress.Toolkit {
			require.Contains(t, container(o.Object.(*appsv1.DaemonSet), "toolkit").Env, corev1.EnvVar{Name: "A", Value: "bcd\ne"})
		}
	}
	require.Equal(t, "b\x7fc\u0090d\ne", p.Spec.Toolkit.Env[0].Value, "the policy is not changed")
}
