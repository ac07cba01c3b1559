package driver

import (
	"cmp"
	"fmt"
	"regexp"
	"strings"

	"github.com/gpuready/gpuready/internal/nvidia"
	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
)

// RuleFile is the path of the NodeFeatureRule that makes NFD publish RHCOS' version.
const RuleFile = "deployments/static/node-feature-rule.yaml"

// Choose chooses the driver of a pool as the policy requires. node is the name of one of the
// pool's nodes, for messages.
func Choose(spec *v1.ClusterPolicySpec, pool fleet.Pool, node string, f Facts) Choice {
	c := chooser{spec: spec, pool: pool, node: node, facts: f}
	switch {
	case !spec.Driver.IsEnabled():
		return Choice{Pool: pool}
	case spec.Driver.IsSimulated():
		return c.simulated()
	case pool.NotServed:
		return chooseNone(pool, node)
	case pool.OS == "":
		return Choice{Pool: pool, Problem: c.problem(OSUnknown,
			"the operating system of node %s is unknown: neither its labels %s and %s nor what the kubelet reports make the end of a driver image's tag; install NFD, or correct these labels",
			node, label.OSID, label.OSVersion)}
	case spec.Driver.Precompiled():
		return c.precompiled()
	}
	return c.buildOnNode(spec.Operator.DriverToolkit())
}

// chooseNone returns the choice for a platform that is not served: what driver the nodes have is removed.
func chooseNone(pool fleet.Pool, node string) Choice {
	return Choice{Pool: pool, Problem: &Problem{Reason: PlatformNotServed, Message: fmt.Sprintf(
		"node %s is WSL2, a Jetson or a host of vGPUs, which gpuready does not serve: no driver is deployed there; "+
			"label it %s=false, and keep NVIDIA's own stack for it (docs/support.md)", node, label.Operands)}}
}

type chooser struct {
	spec  *v1.ClusterPolicySpec
	pool  fleet.Pool
	node  string
	facts Facts
}

func (c *chooser) problem(reason Reason, format string, args ...any) *Problem {
	return &Problem{Reason: reason, Message: fmt.Sprintf(format, args...), Keep: true}
}

func (c *chooser) choice(v Variant, id, image string) Choice {
	id = driverID(id, c.pool.NVIDIADriver())
	return Choice{Pool: c.pool, Variant: v, ID: id, Name: label.DriverApp + "-" + strings.ReplaceAll(id, separator, "-"), Image: image}
}

func (c *chooser) simulated() Choice {
	own := c.facts.Simulator
	if own.Image == "" {
		own = v1.ImageSpec{Repository: c.facts.Images.Repository, Image: "driver-simulator", Version: c.facts.Images.Version}
	}
	if c.spec.Driver.Simulated.IsRenamed(own) {
		own.Version = c.facts.Images.Version
	}
	choice := c.choice(Simulated, simulatedID, c.spec.Driver.Simulated.Ref(own))
	if c.pool.Drivers == "" {
		choice.Name = label.DriverApp
	}
	return choice
}

// buildOnNode returns the driver that is built on the node: with the Driver Toolkit if that is
// wanted and the node runs RHCOS (workers of OpenShift may run RHEL), otherwise by the driver
// container itself.
func (c *chooser) buildOnNode(toolkit bool) Choice {
	if c.facts.OpenShift && toolkit && c.pool.CoreOS {
		return c.toolkit()
	}
	choice := c.choice(Container, containerID(c.pool), c.driverImage(""))
	if choice.Problem = c.unusableImage(choice.Image); choice.Problem != nil {
		return choice
	}
	return c.identify(choice)
}

func (c *chooser) toolkit() Choice {
	version := c.pool.RHCOS
	if version == "" {
		return Choice{Pool: c.pool, Variant: DriverToolkit, Problem: c.problem(RHCOSVersionUnknown,
			"node %s runs RHCOS and has no label %s, by which the Driver Toolkit is chosen; kubectl apply -f %s has NFD publish it",
			c.node, label.OSTree, RuleFile)}
	}
	choice := c.choice(DriverToolkit, toolkitID(c.pool), c.driverImage(""))
	choice.Selector = map[string]string{label.OSTree: version}
	if choice.Problem = c.unusableImage(choice.Image); choice.Problem != nil {
		return choice
	}
	if choice = c.identify(choice); choice.Problem != nil {
		return choice
	}
	image, ok := "", false
	if c.facts.Toolkit != nil {
		image, ok = c.facts.Toolkit(version)
	}
	if !ok && c.facts.ToolkitUnknown != "" {
		choice.Problem = c.problem(DriverToolkitUnknown,
			"cannot find out whether ImageStream openshift/driver-toolkit has tag %s, which node %s runs: %s", version, c.node, c.facts.ToolkitUnknown)
		return choice
	}
	if !ok || image == "" {
		choice.Problem = c.problem(DriverToolkitImageMissing,
			"ImageStream openshift/driver-toolkit has no tag %s, which node %s runs; import it, as in oc -n openshift import-image driver-toolkit:%s, or set spec.driver.usePrecompiled",
			version, c.node, version)
		// Our driver container may get modules without the Driver Toolkit: from its own image, or from
		// spec.driver.prebuild.
		choice.Problem.Try = choice.Ours
		return choice
	}
	choice.Sidecar = image
	return choice
}

func (c *chooser) precompiled() Choice {
	if c.pool.Kernel == "" {
		return Choice{Pool: c.pool, Variant: Precompiled, Problem: c.problem(KernelUnknown,
			"the kernel of node %s is not known, neither from NFD's label %s nor from the kubelet, and precompiled drivers are by kernel", c.node, label.Kernel)}
	}
	choice := c.choice(Precompiled, precompiledID(c.pool), c.driverImage(nvidia.TagKernel(c.pool.Kernel)+"-"))
	if strings.Contains(choice.Image, "@") {
		choice.Problem = c.problem(ImageInvalid,
			"spec.driver names the digest %s, and precompiled drivers differ by kernel: name a version, as in 535, or set spec.driver.usePrecompiled=false", choice.Image)
		return choice
	}
	if choice.Problem = c.unusableImage(choice.Image); choice.Problem != nil {
		return choice
	}
	return c.checkRegistry(choice)
}

// checkRegistry completes a precompiled choice by the registry's result. While the lookup runs, the
// pool keeps what it has: it gets neither the image nor the fallback. If the registry cannot be
// queried, the image is tried on a pool that has no driver.
func (c *chooser) checkRegistry(choice Choice) Choice {
	var presence Presence
	if c.facts.Registry != nil {
		presence = c.facts.Registry(choice.Image)
	}
	c.setOwner(&choice)
	switch presence.State {
	case Present:
		return choice
	case Absent:
		return c.imageMissing(choice, presence.Why)
	case Unknown:
		choice.Problem = c.problem(RegistryUnknown,
			"cannot find out whether driver image %s, for kernel %s of node %s, exists: %s", choice.Image, c.pool.Kernel, c.node, presence.Why)
		choice.Problem.Try = true
	default:
		choice.Problem = c.problem(RegistryPending, "looking up driver image %s in its registry, for node %s", choice.Image, c.node)
	}
	return choice
}

func (c *chooser) imageMissing(choice Choice, doubt string) Choice {
	if doubt != "" {
		doubt = " (" + doubt + ")"
	}
	what := fmt.Sprintf("there is no driver image %s, for kernel %s of node %s%s", choice.Image, c.pool.Kernel, c.node, doubt)
	if c.spec.Driver.Fallback() != v1.FallbackDriverToolkit {
		choice.Problem = c.problem(PrecompiledImageMissing, "%s: build and push it, or set spec.driver.precompiledFallback=%s", what, v1.FallbackDriverToolkit)
		return choice
	}
	// precompiledFallback names the Driver Toolkit, whatever spec.operator.use_ocp_driver_toolkit is.
	fallback := c.buildOnNode(true)
	if fallback.Problem != nil {
		fallback.Problem.Message = what + ", and instead of it: " + fallback.Problem.Message
		return fallback
	}
	fallback.Problem = &Problem{Reason: PrecompiledImageMissing, Message: what + ": its driver is built on the node until that image exists"}
	return fallback
}

// identify completes a choice by the owner of its image. Until the first lookup has succeeded
// or failed, the pool keeps its driver: our driver containers and NVIDIA's are started with other
// arguments and mounts, and neither starts with those of the other.
func (c *chooser) identify(choice Choice) Choice {
	if known := c.setOwner(&choice); !known {
		choice.Problem = c.problem(RegistryPending, "looking up the owner of driver container %s in its registry, for node %s", choice.Image, c.node)
	}
	return choice
}

// setOwner sets whether a choice's image is a driver container of this product, and its driver
// version. known is false until the first lookup has ended.
func (c *chooser) setOwner(choice *Choice) (known bool) {
	owner, known := c.imageOwner(*choice)
	if choice.Ours = owner.Ours; owner.Ours {
		choice.Version = cmp.Or(Version(c.spec.Driver.Version), owner.Version)
	} else {
		choice.AssumedNVIDIA = known && owner.State != Present
	}
	return known
}

// imageOwner returns who made the choice's image; its State is Present if that is certain. The
// image of the operator's own release is ours, and that of NVIDIA's registry is NVIDIA's,
// without a lookup. If the registry gives no result, an image keeps the owner it is deployed
// with, and is otherwise NVIDIA's.
func (c *chooser) imageOwner(choice Choice) (owner Presence, known bool) {
	own := v1.ImageSpec{}.Ref(v1.ImageSpec{Repository: c.facts.Images.Repository, Image: "driver"})
	switch {
	case Repository(choice.Image) == own:
		return Presence{State: Present, Ours: true}, true
	case strings.HasPrefix(choice.Image, nvidia.Vendor+"/"), c.isNVIDIAs(choice.Image):
		return Presence{State: Present}, true
	case c.facts.Registry == nil: // nobody can be asked
		return Presence{}, true
	}
	presence := c.facts.Registry(choice.Image)
	if presence.State == Present && presence.Why == "" { // its labels are known
		return presence, true
	}
	if c.facts.Deployed != nil {
		if owner, ok := c.facts.Deployed(choice.ID, choice.Image); ok {
			return owner, true
		}
	}
	return Presence{}, presence.State != Unasked
}

// versionPattern matches NVIDIA's driver versions: 535.104.05, 390.157.
var versionPattern = regexp.MustCompile(`^[0-9]{1,8}(\.[0-9]{1,8}){1,2}$`)

// Version returns s if it is a complete driver version, and "" otherwise. A tag may have more
// parts, or fewer, such as "535".
func Version(s string) string {
	if versionPattern.MatchString(s) {
		return s
	}
	return ""
}

// Repository returns an image's reference without tag and digest.
func Repository(image string) string {
	image, _, _ = strings.Cut(image, "@")
	if colon := strings.LastIndex(image, ":"); colon > strings.LastIndex(image, "/") {
		image = image[:colon]
	}
	return image
}

// driverImage returns the driver's image for the pool's operating system; prefix precedes the
// operating system in its tag. A digest stays unchanged: it means that image for every pool. Fields
// that the policy leaves empty are those of NVIDIA's image or, if the policy names the repository of
// this product's images, of this product's.
func (c *chooser) driverImage(prefix string) string {
	spec, byDefault := c.spec.Driver.ImageSpec, c.facts.NVIDIA
	if spec.Repository == c.facts.Images.Repository && spec.Repository != "" {
		byDefault = c.facts.Images
		byDefault.Image = "driver"
	} else if c.spec.Driver.Precompiled() {
		byDefault.Version = nvidia.DriverBranch(byDefault.Version) // tags of precompiled images have "535"
	}
	ref, system := spec.Ref(byDefault), c.pool.OS
	if strings.Contains(ref, "@") {
		return ref
	}
	if c.isNVIDIAs(ref) {
		_, version, _ := strings.Cut(strings.TrimPrefix(ref, Repository(ref)), ":")
		system, _ = nvidia.DriverSystem(c.pool.OS, version)
	}
	return ref + "-" + prefix + system
}

// isNVIDIAs reports whether an image is NVIDIA's driver, in their registry or in the mirror that the
// operator's settings name.
func (c *chooser) isNVIDIAs(image string) bool {
	at := Repository(image)
	return at == nvidia.Vendor+"/driver" || at == c.facts.NVIDIA.Repository+"/"+c.facts.NVIDIA.Image
}

// referencePattern matches a valid image reference: a registry, a path in lower case, and a tag or a digest
// (github.com/distribution/reference).
var referencePattern = regexp.MustCompile(`^([a-zA-Z0-9\[][a-zA-Z0-9.:\[\]-]*/)?[a-z0-9][a-z0-9._/-]*(:[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}|@sha256:[0-9a-f]{64})$`)

// unusableImage returns why a driver image cannot exist; nil if it can.
func (c *chooser) unusableImage(image string) *Problem {
	if !referencePattern.MatchString(image) {
		return c.problem(ImageInvalid, "spec.driver's repository, image and version make %q for node %s, which is no image with a path in lower case and a tag; correct them", image, c.node)
	}
	if _, version, _ := strings.Cut(strings.TrimPrefix(image, Repository(image)), ":"); c.isNVIDIAs(image) && !strings.Contains(image, "@") {
		if _, ok := nvidia.DriverSystem(c.pool.OS, version); !ok {
			return c.problem(OSNotSupported, "NVIDIA publishes no image of driver %s for %s, which node %s runs: install the driver on the host and set spec.driver.enabled=false, "+
				"or name an image of yours in spec.driver (docs/driver.md)", nvidia.DriverBranch(version), c.pool.OS, c.node)
		}
	}
	return nil
}
