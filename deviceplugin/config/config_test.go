package config_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpuready/gpuready/deviceplugin/config"
	baseconfig "github.com/gpuready/gpuready/internal/config"
)

func parse(text string) (*config.Config, error) {
	c, _, err := config.Parse([]byte(text), "c.yaml", config.Options{})
	return c, err
}

func TestEveryKeyOfTheReferenceIsAccepted(t *testing.T) {
	c, err := parse(`
version: v1
flags:
  migStrategy: mixed
  failOnInitError: true
  mpsRoot: /run/nvidia/mps
  nvidiaDriverRoot: /run/nvidia/driver
  nvidiaDevRoot: /
  gdrcopyEnabled: true
  gdsEnabled: true
  mofedEnabled: true
  useNodeFeatureAPI: false
  deviceDiscoveryStrategy: nvml
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-annotations]
    deviceIDStrategy: index
    cdiAnnotationPrefix: nvidia.cdi.k8s.io/
    nvidiaCTKPath: /usr/local/nvidia/toolkit/nvidia-ctk
    containerDriverRoot: /driver-root
    sharedDevicesAllocationPolicy: packed
  gfd:
    oneshot: false
    noTimestamp: true
    sleepInterval: 60s
    outputFile: /etc/gfd
    machineTypeFile: /sys/class/dmi/id/product_name
resources:
  gpus:
  - {pattern: "*A100*", name: a100}
  - {pattern: "*", name: nvidia.com/gpu}
  mig:
  - {pattern: "1g.*", name: small}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {name: gpu, replicas: 4}
    - {name: small, replicas: 2, rename: shared-small, devices: [0, "1:0", GPU-b1028956-cfa2-0990-bf4a-5da9abb51763]}
    - {name: nvidia.com/mig-2g.10gb.me, replicas: 3, devices: 2}
imex: {channelIDs: [0], required: true}
`)
	require.NoError(t, err)
	require.Equal(t, config.MIGMixed, c.Flags.MIG())
	require.Equal(t, time.Minute, c.Flags.GFD.SleepInterval.Duration)
	require.Equal(t, []config.Resource{{Pattern: "*A100*", Name: "nvidia.com/a100"}, {Pattern: "*", Name: "nvidia.com/gpu"}}, c.Resources.GPUs)
	strategy, sharing := c.Sharing.Active()
	require.Equal(t, "time-slicing", strategy)
	require.Equal(t, []config.ReplicatedResource{
		{Name: "nvidia.com/gpu", Rename: "nvidia.com/gpu.shared", Replicas: 4, Devices: config.Replicable{All: true}},
		{Name: "nvidia.com/small", Rename: "nvidia.com/shared-small", Replicas: 2, Devices: config.Replicable{List: []string{"0", "1:0", "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763"}}},
		{Name: "nvidia.com/mig-2g.10gb.me", Rename: "nvidia.com/mig-2g.10gb.me.shared", Replicas: 3, Devices: config.Replicable{Count: 2}},
	}, sharing.Resources)
}

func TestOurOwnSectionsAreAccepted(t *testing.T) {
	c, err := parse(`
devices:
  include: [0, "1:3", "*H100*", "0000:3b:00.0"]
  exclude: [GPU-b1028956-cfa2-0990-bf4a-5da9abb51763, "00000000:3C:00.0"]
health:
  xids:
  - {xid: 79, recovery: never}
  - {xid: 31, action: ignore}
  unknownXIDs: {action: unhealthy, recovery: quiet}
  quietPeriod: 10m
`)
	require.NoError(t, err, "without a version it is v1, as to the reference")
	require.Equal(t, config.Version, c.Version)
	require.Equal(t, []config.Selector{"0", "1:3", "*H100*", "0000:3b:00.0"}, c.Devices.Include)
	require.Equal(t, 10*time.Minute, c.Health.QuietPeriod.Duration)
	require.Equal(t, config.XIDRule{XID: 79, Recovery: "never"}, c.Health.XIDs[0])
}

func TestMPSRefusesRequestsGreaterThanOneByDefault(t *testing.T) {
	for text, want := range map[string]bool{"": true, "failRequestsGreaterThanOne: false": false} {
		c, err := parse("sharing:\n  mps:\n    resources: [{name: gpu, replicas: 2}]\n    " + text)
		require.NoError(t, err)
		strategy, mps := c.Sharing.Active()
		require.Equal(t, "mps", strategy)
		require.Equal(t, want, *mps.FailRequestsGreaterThanOne)
	}
}

func TestErrorsNameTheFieldAndTheRemedy(t *testing.T) {
	for in, want := range map[string]string{
		"version: v2":                         `version: "v2" is not known, did you mean "v1"?`,
		"migStrategy: mixed":                  `migStrategy: unknown key`,
		"flags: {migStrategi: mixed}":         `flags.migStrategi: unknown key, did you mean "migStrategy"?`,
		"flags: {migStrategy: mix}":           `flags.migStrategy: "mix" is not known, did you mean "mixed"?`,
		"flags: {migStrategy: ''}":            `flags.migStrategy: "" is not known (known here: none, single, mixed)`,
		"flags: {migStrategy: 1}":             `flags.migStrategy: "1" is not known`,
		"flags: {nvidiaDriverRoot: driver}":   `flags.nvidiaDriverRoot: path "driver" must be absolute`,
		"flags: {deviceDiscoveryStrategy: x}": `flags.deviceDiscoveryStrategy: "x" is not known`,
		"flags: {failOnInitError: maybe}":     `flags.failOnInitError: want true or false, have string`,

		"flags: {plugin: {deviceListStrategy: cdi}}":             `flags.plugin.deviceListStrategy[0]: "cdi" is not known`,
		"flags: {plugin: {deviceListStrategy: []}}":              `flags.plugin.deviceListStrategy: empty; write cdi-cri or remove it`,
		"flags: {plugin: {deviceListStrategy: 'envvar,envvar'}}": `flags.plugin.deviceListStrategy: "envvar" is listed twice; remove one`,
		"flags: {plugin: {cdiAnnotationPrefix: cdi.k8s.io}}":     `flags.plugin.cdiAnnotationPrefix: "cdi.k8s.io" is not an annotation prefix; write one that ends in a slash, as cdi.k8s.io/`,

		"resources: {gpus: [{name: a}]}":                                                `resources.gpus[0].pattern: empty, so it matches nothing; write * for all`,
		"resources: {gpus: [{pattern: '*'}]}":                                           `resources.gpus[0].name: "": a resource needs a name`,
		"resources: {gpus: [{pattern: ' A100', name: a}]}":                              `resources.gpus[0].pattern: " A100" begins or ends with a space`,
		"resources: {gpus: [{pattern: \"a\\tb\", name: a}]}":                            `has a control character`,
		"resources: {gpus: [{pattern: '*', name: A}]}":                                  `resources.gpus[0].name: "nvidia.com/A": not the name of a resource; write lower-case letters`,
		"resources: {gpus: [{pattern: '*', name: amd.com/gpu}]}":                        `resources.gpus[0].name: "nvidia.com/amd.com/gpu": the prefix of every resource is nvidia.com/; remove the other one`,
		"resources: {mig: [{pattern: '*', name: " + strings.Repeat("x", 53) + "}]}":     `longer than 63 characters, prefix included`,
		"resources: {gpus: [{pattern: '*', name: a}, {pattern: '*T4', name: b}]}":       `resources.gpus[1].pattern: "*T4" can never match: resources.gpus[0], "*", matches everything before it; move it above that one`,
		"resources: {mig: [{pattern: '1g.*gb', name: a}, {pattern: 1g.10gb, name: b}]}": `resources.mig[1].pattern: "1g.10gb" can never match: resources.mig[0], "1g.*gb", matches everything`,
		"resources: [a]": `resources: want keys with values, have array`,
		"sharing: {timeSlicing: {renameByDefault: true}}":                        `sharing.timeSlicing: shares nothing: resources is empty`,
		"sharing: {timeSlicing: {replicas: 4}}":                                  `sharing.timeSlicing.replicas: unknown key`,
		"sharing: {timeslicing: {}}":                                             `sharing.timeslicing: unknown key, did you mean "timeSlicing"?`,
		slicing("{name: gpu}"):                                                   `sharing.timeSlicing.resources[0].replicas: 0 shares nothing; write 2 or more, or remove the resource from the list`,
		slicing("{name: gpu, replicas: 1}"):                                      `sharing.timeSlicing.resources[0].replicas: 1 shares nothing`,
		slicing("{name: gpu, replicas: 50001}"):                                  `sharing.timeSlicing.resources[0].replicas: 50001 is more than 50000, the longest list`,
		slicing("{name: gpu, replicas: 2.5}"):                                    `sharing.timeSlicing.resources.replicas: want a whole number, have number 2.5`,
		slicing("{replicas: 2}"):                                                 `sharing.timeSlicing.resources[0].name: "": a resource needs a name`,
		slicing("{name: gpus, replicas: 2}"):                                     `sharing.timeSlicing.resources[0].name: there is no resource nvidia.com/gpus, did you mean "nvidia.com/gpu"?`,
		slicing("{name: mig-1g5gb, replicas: 2}"):                                `there is no resource nvidia.com/mig-1g5gb`,
		slicing("{name: gpu.shared, replicas: 2}"):                               `nvidia.com/gpu.shared is the name of the replicas; write name: nvidia.com/gpu and rename: nvidia.com/gpu.shared`,
		slicing("{name: gpu, replicas: 2}, {name: nvidia.com/gpu, replicas: 4}"): `sharing.timeSlicing.resources[1].name: nvidia.com/gpu is already in resources[0]; remove one, or list the devices of both`,
		slicing("{name: gpu, replicas: 2, devices: [0, 1]}, {name: gpu, replicas: 4, devices: [2, 1]}"):                 `sharing.timeSlicing.resources[1].devices[1]: 1 is in resources[0] already; remove it from one of them`,
		slicing("{name: gpu, replicas: 2, rename: a_b}"):                                                                `sharing.timeSlicing.resources[0].rename: "nvidia.com/a_b": not the name`,
		slicing("{name: gpu, replicas: 2, devices: some}"):                                                              `sharing.timeSlicing.resources[0].devices: "some"; write all, a number of devices, or a list of them`,
		slicing("{name: gpu, replicas: 2, devices: 0}"):                                                                 `sharing.timeSlicing.resources[0].devices: 0 is not a number of devices`,
		slicing("{name: gpu, replicas: 2, devices: {}}"):                                                                `sharing.timeSlicing.resources[0].devices: write all`,
		slicing("{name: gpu, replicas: 2, devices: []}"):                                                                `sharing.timeSlicing.resources[0].devices: no device is named`,
		slicing("{name: gpu, replicas: 2, devices: [0, x]}"):                                                            `sharing.timeSlicing.resources[0].devices[1]: "x" is not a device; write an index (0)`,
		slicing("{name: gpu, replicas: 2, devices: [1, '1']}"):                                                          `sharing.timeSlicing.resources[0].devices[1]: 1 is listed twice`,
		"sharing: {mps: {resources: [{name: gpu, replicas: 49}]}}":                                                      `sharing.mps.resources[0].replicas: 49 is more than 48, the clients that MPS supports on one GPU`,
		"sharing: {mps: {resources: [{name: gpu, replicas: 2}]}, timeSlicing: {resources: [{name: gpu, replicas: 2}]}}": `sharing: timeSlicing and mps exclude each other; remove one of them`,

		"imex: {channelIDs: [1]}":                                                   `imex.channelIDs: [1]: there is only channel 0 yet`,
		"devices: {include: ['']}":                                                  `devices.include[0]: empty; write a UUID`,
		"devices: {include: [-1]}":                                                  `devices.include[0]: -1 is not an index`,
		"devices: {exclude: [GPU-1]}":                                               `devices.exclude[0]: "GPU-1" is not the UUID`,
		"devices: {exclude: ['3b:00.0']}":                                           `devices.exclude[0]: "3b:00.0" is not a PCI address`,
		"devices: {exclude: [' T4']}":                                               `devices.exclude[0]: " T4" begins or ends with a space`,
		"devices: {exclude: [1, 1]}":                                                `devices.exclude[1]: "1" is listed twice`,
		"devices: {include: [1], exclude: [1]}":                                     `devices.exclude[0]: "1" is included too`,
		"health: {xids: [{action: ignore}]}":                                        `health.xids[0].xid: no XID is given`,
		"health: {xids: [{xid: 79}]}":                                               `health.xids[0]: empty; write an action, a recovery, or both`,
		"health: {xids: [{xid: 79, action: reboot}]}":                               `health.xids[0].action: "reboot" is not known (known here: ignore, unhealthy, ask)`,
		"health: {xids: [{xid: 79, recovery: always}]}":                             `health.xids[0].recovery: "always" is not known`,
		"health: {xids: [{xid: 31, action: ignore}, {xid: 31, action: unhealthy}]}": `health.xids[1].xid: XID 31 has a rule in xids[0] already`,
		"health: {xids: [{xid: 31, action: ignore, recovery: quiet}]}":              `health.xids[0].recovery: there is nothing to recover from what is ignored`,
		"health: {unknownXIDs: {}}":                                                 `health.unknownXIDs: empty`,
		"health: {quietPeriod: soon}":                                               `health.quietPeriod: "soon" is not a duration; write a number with its unit, as 5m`,
		"health: {quietPeriod: 5}":                                                  `health.quietPeriod: 5ns is not between 1s and 720h0m0s`,
		"health: {quietPeriod: {a: 1}}":                                             `health.quietPeriod: "{\"a\":1}" is not a duration`,
		"health: {xids: [{xid: -1}]}":                                               `health.xids.xid: want a whole number that is not negative, have number -1`,
	} {
		_, err := parse(in)
		require.ErrorContains(t, err, "c.yaml: ", in)
		require.ErrorContains(t, err, want, in)
		if joined, is := err.(interface{ Unwrap() []error }); is {
			err = joined.Unwrap()[0]
		}
		_, is := errors.AsType[*baseconfig.Error](err)
		require.True(t, is, in)
	}
}

func slicing(resources string) string {
	return "sharing: {timeSlicing: {resources: [" + resources + "]}}"
}

func TestAllErrorsAreReportedAtOnce(t *testing.T) {
	_, err := parse("flags: {migStrategy: x, mpsRoot: y}\nimex: {channelIDs: [7]}")
	require.Len(t, strings.Split(err.Error(), "\n"), 3)
}

func TestEmptySectionsSetNothing(t *testing.T) {
	for _, text := range []string{"version: v1", "flags:\nresources:\nsharing:\nimex:\ndevices:\nhealth:", "sharing: {timeSlicing: {}, mps: null}", "sharing: {timeSlicing: {resources: []}}"} {
		c, err := parse(text)
		require.NoError(t, err, text)
		strategy, r := c.Sharing.Active()
		require.Equal(t, "none", strategy)
		require.Empty(t, r.Resources)
		require.Equal(t, config.MIGNone, c.Flags.MIG())
	}
}

func TestUnknownKeysAreIgnoredOnlyOnRequest(t *testing.T) {
	text := "version: v1\nflags: {migStrategi: mixed, migStrategy: single}\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, replica: 3}]}}"
	_, err := parse(text)
	require.ErrorContains(t, err, "flags.migStrategi: unknown key")

	c, ignored, err := config.Parse([]byte(text), "c.yaml", config.Options{UnknownKeys: config.Warn})
	require.NoError(t, err)
	require.Equal(t, []config.Ignored{
		{Path: "flags.migStrategi", Hint: `unknown key, did you mean "migStrategy"?`},
		{Path: "sharing.timeSlicing.resources[0].replica", Hint: `unknown key, did you mean "replicas"?`},
	}, ignored)
	require.Equal(t, config.MIGSingle, c.Flags.MIG())

	for _, bad := range []string{"x: 1\nx: 2", "x: 1\nflags: {migStrategy: x}"} {
		_, _, err := config.Parse([]byte(bad), "c.yaml", config.Options{UnknownKeys: config.Warn})
		require.ErrorContains(t, err, "c.yaml: ", "values are checked as ever")
	}
}

func TestCommandLineOverridesTheFile(t *testing.T) {
	file, err := parse("flags: {migStrategy: mixed, gdsEnabled: true, plugin: {deviceListStrategy: envvar}}\nimex: {required: true}")
	require.NoError(t, err)
	laid := file.With(config.Flags{
		MigStrategy: new(config.MIGNone), MOFEDEnabled: new(true),
		Plugin: config.PluginFlags{DeviceListStrategy: config.StringList{"cdi-cri"}, PassDeviceSpecs: new(true)},
	}, config.Imex{ChannelIDs: []int{0}})
	require.Equal(t, config.MIGNone, laid.Flags.MIG())
	require.True(t, *laid.Flags.GDSEnabled)
	require.True(t, *laid.Flags.MOFEDEnabled)
	require.Equal(t, config.StringList{"cdi-cri"}, laid.Flags.Plugin.DeviceListStrategy)
	require.Equal(t, config.Imex{ChannelIDs: []int{0}, Required: new(true)}, laid.Imex)
	require.Equal(t, config.MIGMixed, file.Flags.MIG(), "the file's is as it was")
	require.Nil(t, file.Flags.Plugin.PassDeviceSpecs)
}

func TestCheckCoversCombinationsWithTheCommandLine(t *testing.T) {
	file, err := parse("flags: {migStrategy: mixed}\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}")
	require.NoError(t, err)
	require.EqualError(t, file.Check(), "sharing.mps: MPS cannot share MIG devices, and flags.migStrategy is mixed; write none or single, or remove sharing.mps")
	require.NoError(t, file.With(config.Flags{MigStrategy: new(config.MIGSingle)}, config.Imex{}).Check())
	require.EqualError(t, file.With(config.Flags{MigStrategy: new("some")}, config.Imex{}).Check(), `flags.migStrategy: "some" is not known, did you mean "none"?`)
}

func TestConfigurationRoundTripsThroughJSON(t *testing.T) {
	c, err := parse("flags: {migStrategy: mixed, gfd: {sleepInterval: 90s}}\n" +
		slicing("{name: gpu, replicas: 2, devices: 3}, {name: mig-1g.5gb, replicas: 9}") + "\nhealth: {quietPeriod: 1h}")
	require.NoError(t, err)
	data, err := json.Marshal(c)
	require.NoError(t, err)
	again, err := parse(string(data))
	require.NoError(t, err, string(data))
	require.Equal(t, c, again)
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"version: v1\nflags: {migStrategy: none, plugin: {deviceListStrategy: cdi-cri}}",
		slicing("{name: a, replicas: 2, devices: [0]}"),
		"resources: {gpus: [{pattern: '*', name: a}]}", "devices: {include: [0]}", "health: {quietPeriod: 5m, xids: [{xid: 79, action: ignore}]}", "{", "imex: {channelIDs: [0]}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, err := config.Parse(data, "fuzz.yaml", config.Options{})
		lenient, ignored, lenientErr := config.Parse(data, "fuzz.yaml", config.Options{UnknownKeys: config.Warn})
		if err != nil {
			require.ErrorContains(t, err, "fuzz.yaml: ")
			require.False(t, lenientErr == nil && len(ignored) == 0)
			return
		}
		require.NoError(t, lenientErr)
		require.Equal(t, c, lenient)
		require.Equal(t, config.Version, c.Version)
		written, err := json.Marshal(c)
		require.NoError(t, err)
		again, _, err := config.Parse(written, "again", config.Options{})
		require.NoError(t, err, string(written))
		require.Equal(t, mustJSON(t, c), mustJSON(t, again))
	})
}

func mustJSON(t *testing.T, v any) string {
	data, err := json.Marshal(v)
	require.NoError(t, err)
	return string(data)
}
