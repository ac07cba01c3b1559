package controller

import (
	"fmt"

	v1 "github.com/gpuready/gpuready/operator/api/v1"
	"github.com/gpuready/gpuready/operator/apply"
	"github.com/gpuready/gpuready/operator/driver"
	"github.com/gpuready/gpuready/operator/fleet"
	"github.com/gpuready/gpuready/operator/label"
	"github.com/gpuready/gpuready/operator/progress"
	"github.com/gpuready/gpuready/operator/state"
	"github.com/gpuready/gpuready/operator/upgrade"
)

// desired is the state that the policy requires of the cluster.
type desired struct {
	policy   *v1.ClusterPolicy // nil if none is in force: nodes are released
	handOver bool              // NVIDIA's operator runs: only nodes that were handed over are served
	// placeByHandOver means that DaemonSets select nodes by label.HandOver. It stays true after
	// NVIDIA's operator ended until all these nodes have the labels that place operands otherwise.
	placeByHandOver bool
	// elsewhere is the namespace in which another operator's operands serve the policy.
	// No objects are created beside them.
	elsewhere string
	err       error // why the rest is unknown; then nothing is removed

	// From the policy:
	operands []string        // enabled, as in nvidia.com/gpu.deploy.<operand>
	wanted   progress.Wanted // of a node
	// keepDRADriver means that the DRA driver is disabled and stays, as it is, until all nodes serve by the
	// device plugin again: image, pull secrets and placement have left the policy with it.
	keepDRADriver bool
	upgrades      upgrade.Policy
	// upgradesOf are the same of NVIDIADrivers, by name.
	upgradesOf map[string]upgrade.Policy
	unserved   []string            // fields that have no effect
	unservedOf map[string][]string // the same of NVIDIADrivers, by name, besides those of their specs
	problems   []state.Problem     // parts that cannot be carried out

	// From the policy and the cluster:
	choices []driver.Choice // the driver of each pool
	// unreadDrivers means that the NVIDIADrivers are needed and not known.
	unreadDrivers bool
	objects       []apply.Object                // to apply
	driverSets    map[string]upgrade.Set        // DaemonSets of drivers that exist, by the driver's ID
	targets       map[fleet.Pool]upgrade.Target // the driver that upgrades lead to
	prebuilt      []v1.PrebuiltStatus           // modules built for kernels that nodes will run
}

// computeDesired computes the desired state from the model and the survey.
func (c *Controller) computeDesired() *desired {
	m := c.model
	s := &desired{handOver: m.handOver(), driverSets: m.driverSets()}
	s.wanted.HandOver = s.handOver
	s.policy, _ = m.inForce()
	if s.policy == nil {
		return s
	}
	if s.elsewhere = m.servedElsewhere(s.policy); s.elsewhere != "" {
		s.err = fmt.Errorf("operands for ClusterPolicy %s run in namespace %s", s.policy.Name, s.elsewhere)
		return s
	}
	spec := &s.policy.Spec
	s.keepDRADriver = !spec.DRADriver.IsEnabled() && c.hasDRANodes(s.handOver)
	s.operands, s.wanted, s.unserved = enabledOperands(spec, s.keepDRADriver), progress.NewWanted(spec, s.handOver), append(s.policy.Unserved(), state.Replaced(spec, c.Cluster)...)
	s.placeByHandOver = s.handOver || m.isLabelMissing(s.operands) && m.isPlacedByHandOver()
	c.chooseDrivers(s)
	if s.err = c.renderObjects(s); s.err != nil {
		return s
	}
	s.upgrades = s.parseUpgrades(spec, "")
	s.upgradesOf = map[string]upgrade.Policy{}
	for name, spec := range m.selection.Specs() {
		s.upgradesOf[name] = s.parseUpgrades(spec, name)
	}
	return s
}

// parseUpgrades parses the upgrade policy of a policy or of an NVIDIADriver. One that cannot be
// read upgrades nothing.
func (s *desired) parseUpgrades(spec *v1.ClusterPolicySpec, nvidiaDriver string) upgrade.Policy {
	upgrades, err := upgrade.ParsePolicy(spec.Driver.UpgradePolicy)
	if err == nil {
		return upgrades
	}
	problem := state.Problem{State: progress.Driver, Reason: reasonUpgradePolicy, Message: err.Error(), NVIDIADriver: nvidiaDriver}
	if nvidiaDriver != "" {
		problem.Message = driver.FieldsOf(nvidiaDriver, problem.Message)
	}
	s.problems = append(s.problems, problem)
	return upgrade.Policy{}
}

// operandFields lists each operand by its name in the label nvidia.com/gpu.deploy.<name>, with
// the field of a policy that enables it.
var operandFields = []struct {
	name    string
	enabled func(*v1.ClusterPolicySpec) bool
}{
	{label.DriverOperand, func(s *v1.ClusterPolicySpec) bool { return s.Driver.IsEnabled() }},
	{"container-toolkit", func(s *v1.ClusterPolicySpec) bool { return s.Toolkit.IsEnabled() }},
	{"device-plugin", func(s *v1.ClusterPolicySpec) bool { return s.DevicePlugin.IsEnabled() }},
	{label.DRAOperand, func(s *v1.ClusterPolicySpec) bool { return s.DRADriver.IsEnabled() }},
	{"operator-validator", func(*v1.ClusterPolicySpec) bool { return true }},
	{"gpu-feature-discovery", func(s *v1.ClusterPolicySpec) bool { return s.GPUFeatureDiscovery.IsEnabled() }},
	{"dcgm", func(s *v1.ClusterPolicySpec) bool { return s.DCGM.IsEnabled() }},
	{"dcgm-exporter", func(s *v1.ClusterPolicySpec) bool { return s.DCGMExporter.IsEnabled() }},
	{"mig-manager", func(s *v1.ClusterPolicySpec) bool { return s.MIGManager.IsEnabled() }},
}

func enabledOperands(spec *v1.ClusterPolicySpec, keepDRADriver bool) (names []string) {
	for _, o := range operandFields {
		if o.enabled(spec) || keepDRADriver && o.name == label.DRAOperand {
			names = append(names, o.name)
		}
	}
	return names
}
